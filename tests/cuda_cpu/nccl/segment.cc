#include "cuda_cpu/nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/runtime/waiting.h"

namespace onebit::nccl_stand_in {
namespace {

struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::shared_ptr<Segment> Segment::open(const std::string& name, int ranks) {
  static cuda_cpu::Mutex mutex;
  static auto& open_ones = *new std::map<std::string, std::weak_ptr<Segment>>;
  const std::lock_guard lock(mutex);
  if (auto segment = open_ones[name].lock()) return segment;
  const std::shared_ptr<Segment> segment(new Segment);
  constexpr unsigned kRingKiB = 256;
  segment->name_ = name;
  segment->ranks_ = ranks;
  segment->ring_bytes_ =
      std::size_t{cuda_cpu::number_from_environment("CUDA_CPU_NCCL_RING_KIB", kRingKiB, 1, 1U << 16)} << 10;
  segment->bytes_ = sizeof(Board) + static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks) *
                                        (sizeof(Ring) + segment->ring_bytes_);
  const UniqueFd file(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(segment->bytes_)) != 0) return nullptr;
  void* const memory = ::mmap(nullptr, segment->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  segment->memory_ = static_cast<unsigned char*>(memory);
  open_ones[name] = segment;
  return segment;
}

Segment::~Segment() {
  if (memory_ == nullptr) return;
  if (!complete()) ::shm_unlink(name_.c_str());  // not all came, and this process gives up
  ::munmap(memory_, bytes_);
}

Ring& Segment::ring(int from, int to) const {
  const auto number = static_cast<std::size_t>(from * ranks_ + to);
  return *reinterpret_cast<Ring*>(memory_ + sizeof(Board) + number * (sizeof(Ring) + ring_bytes_));
}

// A descriptor for each rank: locks of open file descriptions are told apart by it, within a process too.
UniqueFd Segment::attach(int rank) {
  UniqueFd file(::shm_open(name_.c_str(), O_RDWR | O_CLOEXEC, 0600));
  struct flock lock = lock_of(rank);
  if (!file || ::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) return {};
  if (board().attached.fetch_add(1) + 1 == ranks_) ::shm_unlink(name_.c_str());
  return file;
}

bool Segment::alive(const UniqueFd& own, int rank) {
  struct flock lock = lock_of(rank);
  return ::fcntl(own.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace onebit::nccl_stand_in
