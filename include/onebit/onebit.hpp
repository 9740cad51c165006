// The C++ face of onebit.h: RAII communicators and errors as exceptions of your own program. Header only,
// C++17.
//
// Threads: as in onebit.h.
#pragma once

#include <onebit/onebit.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace onebit {

/// A failed call: its code and onebitGetLastError()'s text.
class Error : public std::runtime_error {
 public:
  Error(onebitResult_t code, const std::string& message) : std::runtime_error(message), code_(code) {}
  onebitResult_t code() const noexcept { return code_; }

 private:
  onebitResult_t code_;
};

inline void check(onebitResult_t result, onebitComm_t comm = nullptr) {
  if (result == onebitSuccess) return;
  throw Error(result, std::string(onebitGetErrorString(result)) + ": " + onebitGetLastError(comm));
}

template <typename T>
struct DataTypeOf;
template <>
struct DataTypeOf<float> {
  static constexpr onebitDataType_t value = onebitFloat32;
};
template <>
struct DataTypeOf<double> {
  static constexpr onebitDataType_t value = onebitFloat64;
};
template <>
struct DataTypeOf<std::int32_t> {
  static constexpr onebitDataType_t value = onebitInt32;
};
template <>
struct DataTypeOf<std::int64_t> {
  static constexpr onebitDataType_t value = onebitInt64;
};

/// Makes a unique id, in the process of rank 0.
inline onebitUniqueId unique_id() {
  onebitUniqueId id;
  check(onebitGetUniqueId(&id));
  return id;
}

/// A communicator, destroyed with the object.
class Communicator {
 public:
  /// From the launcher's environment.
  explicit Communicator(const char* name = nullptr, const char* settings = nullptr) {
    const onebitConfig_t config{sizeof(onebitConfig_t), name, settings};
    check(onebitCommInitEnv(&comm_, &config));
  }
  Communicator(int nranks, const onebitUniqueId& id, int rank, const char* name = nullptr,
               const char* settings = nullptr) {
    const onebitConfig_t config{sizeof(onebitConfig_t), name, settings};
    check(onebitCommInitRankConfig(&comm_, nranks, id, rank, &config));
  }
  Communicator(Communicator&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() { onebitCommDestroy(comm_); }

  onebitComm_t get() const noexcept { return comm_; }
  int rank() const {
    int value = 0;
    check(onebitCommUserRank(comm_, &value), comm_);
    return value;
  }
  int size() const {
    int value = 0;
    check(onebitCommCount(comm_, &value), comm_);
    return value;
  }

  /// `count` elements; `tag` as in onebitAllReduce.
  template <typename T>
  void all_reduce(const T* send, T* receive, std::size_t count, onebitRedOp_t op = onebitSum,
                  const char* tag = nullptr) {
    check(onebitAllReduce(send, receive, count, DataTypeOf<T>::value, op, tag, comm_, nullptr), comm_);
  }
  template <typename T>
  void broadcast(T* buffer, std::size_t count, int root) {
    check(onebitBroadcast(buffer, buffer, count, DataTypeOf<T>::value, root, comm_, nullptr), comm_);
  }
  void barrier() { check(onebitBarrier(comm_), comm_); }
  void save_residuals(const char* directory) { check(onebitResidualSave(comm_, directory), comm_); }
  void load_residuals(const char* directory) { check(onebitResidualLoad(comm_, directory), comm_); }

 private:
  onebitComm_t comm_ = nullptr;
};

/// Tags the untagged allreduces of this thread while it lives.
class Scope {
 public:
  explicit Scope(const char* tag) { check(onebitScopeBegin(tag)); }
  ~Scope() { onebitScopeEnd(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace onebit
