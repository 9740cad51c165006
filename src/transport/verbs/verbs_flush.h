// Flushes of what was received into the memory of GPUs: each port reads a byte of it back.
//
// A device tells of a write into a GPU's memory through the host's, and the two ways are not of one length:
// the completion may overtake the bytes. A read by the same device cannot, so when it has come back, the GPU
// sees all that was written before. Each port has a queue pair for that, connected to itself. Invariant: one
// flush at a time. Threads: those of the context.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "transport/verbs/verbs_core.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_pages.h"

namespace onebit::transport {

class VerbsFlush {
 public:
  static Result<std::unique_ptr<VerbsFlush>> make(const std::vector<OpenPort*>& ports,
                                                  const Settings& settings);

  bool busy() const noexcept { return under_way_ > 0; }
  /// Begins one; `memory` holds what lies at `data`.
  Status begin(const void* data, PortHolds memory);
  /// True when it has come to its end; an error says through which port it did not.
  Result<bool> poll();
  /// Asks for an event when a read comes back.
  Status arm() noexcept;

 private:
  struct Way {
    OpenPort* port;
    RegisteredMemory::Hold landing;
    VerbsCompletions completions;
    VerbsPair pair;
  };
  VerbsFlush() = default;
  Status add(OpenPort& port, const Settings& settings);

  VerbsPages landed_;  ///< what was read, a byte; nobody looks at it
  std::vector<Way> ways_;
  PortHolds memory_;
  std::size_t under_way_ = 0;
};

}  // namespace onebit::transport
