// The C API: collective calls and their explanation. Checks arguments, resolves tags.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "api/handle.h"
#include "api/result.h"
#include "api/tags.h"

using onebit::Code;
using onebit::DataType;
using onebit::ReduceOp;
using onebit::Result;
using onebit::Status;
using onebit::api::count_call;
using onebit::api::guarded;
using onebit::api::not_null;
using onebit::api::number_of;
using onebit::api::resolve_tag;

namespace {

constexpr std::size_t kLongestTag = 255;
constexpr std::size_t kMostBytes = std::size_t{1} << 48;

Result<DataType> reducible_type(int datatype, int op) {
  switch (datatype) {
    case onebitInt32:
    case onebitInt64:
      if (op == onebitAvg)
        return Status(Code::kInvalidArgument, "onebitAvg takes floating types, not integers");
      break;
    case onebitFloat16:
    case onebitFloat32:
    case onebitFloat64:
    case onebitBfloat16:
      break;
    case onebitUint8:
      return Status(Code::kInvalidArgument, "onebitUint8 is for broadcast and allgather, not for allreduce");
    default:
      return Status::error(Code::kInvalidArgument, "datatype {} is unknown", datatype);
  }
  if (op != onebitSum && op != onebitAvg) {
    return Status::error(Code::kInvalidArgument, "op {} is unknown: onebitSum and onebitAvg are there", op);
  }
  return static_cast<DataType>(datatype);
}

/// Bytes of `count` elements of any type.
Result<std::size_t> size_in_bytes(std::size_t count, int datatype) {
  std::size_t element = 1;
  if (datatype != onebitUint8) {
    ONEBIT_ASSIGN_OR_RETURN(const DataType type, reducible_type(datatype, onebitSum));
    element = size_of(type);
  }
  if (count > kMostBytes / element) {
    return Status::error(Code::kInvalidArgument, "count {} is too large", count);
  }
  return count * element;
}

/// The tag of a call's argument; empty for none.
Result<std::string_view> given_tag(const char* tag) {
  const std::size_t length = tag == nullptr ? 0 : strnlen(tag, kLongestTag + 1);
  if (length > kLongestTag) return Status(Code::kInvalidArgument, "a tag has at most 255 bytes");
  return std::string_view(tag, length);
}

Status check_buffers(const void* sendbuff, const void* recvbuff, std::size_t bytes, const void* stream) {
  if (bytes != 0) {
    ONEBIT_RETURN_IF_ERROR(not_null(sendbuff, "sendbuff"));
    ONEBIT_RETURN_IF_ERROR(not_null(recvbuff, "recvbuff"));
  }
  if (stream != nullptr)
    return Status(Code::kInvalidArgument, "stream must be NULL: buffers are host memory");
  return Status();
}

Status check_alignment(const void* buffer, const char* name, std::size_t element) {
  if (reinterpret_cast<std::uintptr_t>(buffer) % element == 0) return Status();
  return Status::error(Code::kInvalidArgument, "{} must be aligned to its {}-byte elements", name, element);
}

Status check_overlap(const void* sendbuff, std::size_t send_bytes, const void* recvbuff,
                     std::size_t receive_bytes) {
  const auto from = reinterpret_cast<std::uintptr_t>(sendbuff);
  const auto to = reinterpret_cast<std::uintptr_t>(recvbuff);
  if (from + send_bytes <= to || to + receive_bytes <= from) return Status();
  return Status(Code::kInvalidArgument, "sendbuff and recvbuff overlap without being in place");
}

}  // namespace

onebitResult_t onebitAllReduce(const void* sendbuff, void* recvbuff, size_t count, onebitDataType_t datatype,
                               onebitRedOp_t op, const char* tag, onebitComm_t comm, void* stream) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_ASSIGN_OR_RETURN(const DataType type, reducible_type(number_of(datatype), number_of(op)));
    ONEBIT_ASSIGN_OR_RETURN(const std::size_t bytes, size_in_bytes(count, number_of(datatype)));
    ONEBIT_RETURN_IF_ERROR(check_buffers(sendbuff, recvbuff, bytes, stream));
    ONEBIT_RETURN_IF_ERROR(check_alignment(sendbuff, "sendbuff", size_of(type)));
    ONEBIT_RETURN_IF_ERROR(check_alignment(recvbuff, "recvbuff", size_of(type)));
    if (sendbuff != recvbuff) ONEBIT_RETURN_IF_ERROR(check_overlap(sendbuff, bytes, recvbuff, bytes));
    ONEBIT_ASSIGN_OR_RETURN(const std::string_view given, given_tag(tag));
    ONEBIT_RETURN_IF_ERROR(comm->communicator->all_reduce(
        sendbuff, recvbuff, count, type, static_cast<ReduceOp>(op), resolve_tag(given, sendbuff)));
    count_call(given);  // not one that was refused: it is made again
    return Status();
  });
}

onebitResult_t onebitBroadcast(const void* sendbuff, void* recvbuff, size_t count, onebitDataType_t datatype,
                               int root, onebitComm_t comm, void* stream) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_ASSIGN_OR_RETURN(const std::size_t bytes, size_in_bytes(count, number_of(datatype)));
    auto& communicator = *comm->communicator;
    if (root < 0 || static_cast<std::size_t>(root) >= communicator.ranks()) {
      return Status::error(Code::kInvalidArgument, "root {} is not a rank of {}", root, communicator.ranks());
    }
    const bool is_root = communicator.rank() == static_cast<std::size_t>(root);
    ONEBIT_RETURN_IF_ERROR(check_buffers(is_root ? sendbuff : recvbuff, recvbuff, bytes, stream));
    if (is_root && sendbuff != recvbuff) {
      ONEBIT_RETURN_IF_ERROR(check_overlap(sendbuff, bytes, recvbuff, bytes));
    }
    return communicator.broadcast(sendbuff, recvbuff, bytes, static_cast<std::size_t>(root));
  });
}

onebitResult_t onebitAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                               onebitDataType_t datatype, onebitComm_t comm, void* stream) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_ASSIGN_OR_RETURN(const std::size_t bytes, size_in_bytes(sendcount, number_of(datatype)));
    auto& communicator = *comm->communicator;
    if (bytes > kMostBytes / communicator.ranks()) {
      return Status::error(Code::kInvalidArgument, "sendcount {} is too large", sendcount);
    }
    ONEBIT_RETURN_IF_ERROR(check_buffers(sendbuff, recvbuff, bytes, stream));
    const auto* const own_part = static_cast<const std::byte*>(recvbuff) + communicator.rank() * bytes;
    if (sendbuff != own_part) {
      ONEBIT_RETURN_IF_ERROR(check_overlap(sendbuff, bytes, recvbuff, bytes * communicator.ranks()));
    }
    return communicator.all_gather(sendbuff, recvbuff, bytes);
  });
}

onebitResult_t onebitBarrier(onebitComm_t comm) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    return comm->communicator->barrier();
  });
}

onebitResult_t onebitExplain(const void* sendbuff, size_t count, onebitDataType_t datatype, onebitRedOp_t op,
                             const char* tag, onebitComm_t comm, char* text, size_t size) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(comm->communicator->in_own_process());
    ONEBIT_RETURN_IF_ERROR(not_null(text, "text"));
    ONEBIT_ASSIGN_OR_RETURN(const DataType type, reducible_type(number_of(datatype), number_of(op)));
    ONEBIT_RETURN_IF_ERROR(size_in_bytes(count, number_of(datatype)).status());
    ONEBIT_ASSIGN_OR_RETURN(const std::string_view given, given_tag(tag));
    const std::string why =
        comm->communicator->explain(count, type, static_cast<ReduceOp>(op), resolve_tag(given, sendbuff));
    if (size == 0) return Status();
    const std::size_t length = std::min(size - 1, why.size());
    std::memcpy(text, why.data(), length);
    text[length] = '\0';
    return Status();
  });
}
