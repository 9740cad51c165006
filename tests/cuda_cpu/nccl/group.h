// Groups: what a thread issues between ncclGroupStart and the outermost ncclGroupEnd starts there, all
// together.
//
// State is the thread's own. For a non-blocking communicator the start is left to its next
// ncclCommGetAsyncError: a job that does not ask does not get its operation.
#pragma once

#include "cuda_cpu/nccl/communicator.h"
#include "cuda_cpu/nccl/tasks.h"

namespace onebit::nccl_stand_in {

void group_start();
ncclResult_t group_end();
/// An operation or a communicator under way; both start at once outside of groups.
ncclResult_t submit(const CommunicatorPointer& communicator, const Task& task);
ncclResult_t submit(const CommunicatorPointer& new_one);
/// A call inside a group failed: the group fails as a whole.
ncclResult_t fail_group(ncclResult_t result);

}  // namespace onebit::nccl_stand_in
