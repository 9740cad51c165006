// The ranks of a communicator joined by one of our transports, and the thread that moves their messages.
//
// A job is the messages of one exchange, in host memory; all ranks post the same jobs in the same order. It
// starts when the stream that makes its bytes says that they are there (StreamWords) and the jobs before it
// have started, and is over when all its messages are sent or received and the jobs before it are over; the
// host's word tells streams. The first failure ends all jobs, those under way and those to come: what they
// receive is NaNs, the peers are told why, and the words let every stream go on.
//
// Set-up is the making thread's: `create`, `connect`, `step` until it is connected, `start`. From then on
// transport objects belong to the thread within; `post`, `add_memory` and `drain` are called by one thread at
// a time, `status` and `abort` by any.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/status.h"
#include "collective/nccl/stream_words.h"
#include "transport/factory.h"

namespace onebit::nccl {

/// A message of a job.
struct Message {
  unsigned peer;
  bool is_sent;  ///< or received: then it must have exactly these bytes
  std::span<std::byte> bytes;
};

class ExchangeThread {
 public:
  struct Options {
    Settings settings;
    unsigned ranks, rank;
    std::string peers;  ///< what messages call its ranks
  };
  /// Listens by the transport that the settings name.
  static onebit::Result<std::unique_ptr<ExchangeThread>> create(const Options& options);
  ExchangeThread(const ExchangeThread&) = delete;
  ExchangeThread& operator=(const ExchangeThread&) = delete;
  /// Says goodbye to the peers, within a bounded time, if nothing has failed.
  ~ExchangeThread();

  const transport::Handle& handle() const { return listener_->handle(); }
  /// Starts to connect to the ranks below this one, by their handles.
  Status connect(std::span<const transport::Handle> handles);
  /// Goes on connecting, for at most a moment. True when all ranks are connected.
  onebit::Result<bool> step();
  /// The ranks that are not, for a message.
  std::string missing() const;
  /// Starts the thread. `words` must outlive it.
  Status start(const StreamWords& words);

  /// Posts a job and gives its number. `check`: what it is about, equal on all ranks that agree. Without
  /// `follows_stream` its bytes are there.
  std::uint32_t post(std::span<const Message> messages, std::uint32_t check, bool follows_stream);
  /// Memory that messages are in, until the end: it is registered with the transport. What they are received
  /// in is filled with NaNs after a failure.
  void add_memory(std::span<std::byte> memory, bool receives);
  /// Until all that was posted is over, or the failure by which it ended: then nothing uses its memory any
  /// more. A deadline is a failure, too.
  Status drain(Deadline deadline);
  Status status() const;
  void abort(const Status& reason);

  std::string_view transport() const { return context_->name(); }

 private:
  struct Job;
  struct Transfer;
  explicit ExchangeThread(const Options& options);
  Status accept();
  Status endpoint_failure(const transport::Endpoint& endpoint) const;
  std::string described(std::size_t rank) const;

  // ---- the thread's own ----
  void run();
  void loop();
  void take_posted();
  Status start_ready();
  Status start(Job& job);
  Status finish(transport::Request& request);
  void retire_jobs();
  std::chrono::milliseconds patience() const;
  /// From now on: within ONEBIT_TIMEOUT.
  void expect_progress();
  Status check_deadline();
  std::uint64_t bytes_moved() const;
  void fail(const Status& reason);
  /// Under the lock: fills what is received in with NaNs. Any thread.
  void spoil_memory();
  void say_goodbye();

  const Options options_;
  const pid_t process_;
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::Listener> listener_;
  std::vector<std::unique_ptr<transport::Endpoint>> endpoints_;  ///< by rank; null for this one
  const StreamWords* words_ = nullptr;
  std::thread thread_;

  // The thread's own.
  std::deque<std::unique_ptr<Job>> jobs_;  ///< not over, in their order; after a failure they stay
  std::size_t started_ = 0;                ///< how many of these
  std::vector<std::unique_ptr<transport::Memory>> registered_;  ///< of `memory_`; null where it failed
  std::vector<transport::Request*> completed_;
  Deadline deadline_ = Deadline::never();
  std::uint64_t moved_ = 0;
  bool has_failed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable over_;
  std::deque<std::unique_ptr<Job>> posted_;
  std::vector<std::unique_ptr<Job>> free_;
  struct Area {
    std::span<std::byte> bytes;
    bool receives;
  };
  std::vector<Area> memory_;
  std::uint32_t next_ = 1;       ///< number of the next job
  std::uint32_t last_over_ = 0;  ///< number of the last job that is over
  bool is_stopping_ = false;
  bool is_failure_over_ = false;  ///< all that a failure brings about is done
  Status status_;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace onebit::nccl
