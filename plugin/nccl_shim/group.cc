#include "group.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace onebit::shim {
namespace {

/// What turned out not to be compressed, in one group of NCCL's own.
nccl::Result run_exactly(const RealNccl& real, const std::vector<const QueuedCall*>& calls) {
  if (calls.empty()) return nccl::kSuccess;
  const nccl::Functions& functions = real.functions;
  if (const nccl::Result result = functions.group_start(); result != nccl::kSuccess) return result;
  nccl::Result first = nccl::kSuccess;
  for (const QueuedCall* const call : calls) {
    const nccl::Result result = call->communicator->call_real(call->arguments);
    if (first == nccl::kSuccess) first = result;
  }
  const nccl::Result result = functions.group_end();
  return first != nccl::kSuccess ? first : result;
}

/// Calls of communicators of one NCCL.
nccl::Result run_together(const std::vector<QueuedCall>& calls) {
  std::vector<cuda::Reduction> requests;
  for (const QueuedCall& call : calls) {
    const Arguments& a = call.arguments;
    requests.push_back({call.communicator->device_side(), a.send, a.receive, a.count, a.scatters, a.type,
                        a.op, call.tag.c_str(), a.stream, false});
  }
  const nccl::Result result = shim_settings()->library->reduce(requests.data(), requests.size());
  if (result != nccl::kSuccess) return result;
  std::vector<const QueuedCall*> exact;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (requests[i].compressed) continue;
    calls[i].communicator->count_as_exact(calls[i].tag);
    exact.push_back(&calls[i]);
  }
  return run_exactly(calls.front().communicator->real(), exact);
}

nccl::Result run_all(std::vector<QueuedCall> calls) {
  while (!calls.empty()) {
    const RealNccl* const real = &calls.front().communicator->real();
    const auto others = std::stable_partition(calls.begin(), calls.end(), [&](const QueuedCall& call) {
      return &call.communicator->real() == real;
    });
    std::vector<QueuedCall> rest(std::make_move_iterator(others), std::make_move_iterator(calls.end()));
    calls.erase(others, calls.end());
    if (const nccl::Result result = run_together(calls); result != nccl::kSuccess) return result;
    calls = std::move(rest);
  }
  return nccl::kSuccess;
}

/// Makes our part of each, or gives none of them to the job.
nccl::Result take_over_now(const std::vector<NewCommunicator>& made) {
  std::vector<std::shared_ptr<Communicator>> all;
  nccl::Result result = nccl::kSuccess;
  for (const NewCommunicator& one : made) {
    if (*one.handle == nullptr) continue;  // a rank that ncclCommSplit leaves out
    auto communicator = Communicator::create(one.real, *one.handle, one.making);
    if (!communicator.ok()) {
      log(LogLevel::kWarn, "{}", communicator.status().message());
      result = nccl::kSystemError;
      break;
    }
    all.push_back(*communicator);
  }
  if (result == nccl::kSuccess) result = Communicator::compare_settings(all);
  if (result == nccl::kSuccess) {
    for (const auto& communicator : all) add(communicator);
    return nccl::kSuccess;
  }
  for (const NewCommunicator& one : made) {
    const nccl::Comm comm = std::exchange(*one.handle, nullptr);
    if (comm == nullptr) continue;
    const auto is_its = [&](const auto& communicator) { return communicator->comm() == comm; };
    if (const auto ours = std::find_if(all.begin(), all.end(), is_its); ours != all.end()) {
      (*ours)->give_up();
    } else if (one.real->abort != nullptr) {
      one.real->abort(comm);
    }
  }
  return result;
}

}  // namespace

Group& Group::current() {
  thread_local Group group;
  return group;
}

nccl::Result Group::end(nccl::Result result) {
  if (depth_ > 0 && --depth_ > 0) return result;
  const std::vector<NewCommunicator> made = std::exchange(made_, {});
  std::vector<QueuedCall> calls = std::exchange(calls_, {});
  if (result == nccl::kInProgress) {
    // Only non-blocking communicators take their time, and these are never compressed.
    std::vector<NewCommunicator> waiting;
    for (const NewCommunicator& one : made) {
      if (!one.making.is_blocking) waiting.push_back(one);
    }
    const nccl::Result taken = take_over_now(waiting);
    return taken == nccl::kSuccess ? result : taken;
  }
  if (result != nccl::kSuccess) return result;
  if (!made.empty()) result = take_over_now(made);
  return result == nccl::kSuccess ? run_all(std::move(calls)) : result;
}

nccl::Result Group::run(QueuedCall call) {
  if (depth_ > 0) {
    calls_.push_back(std::move(call));
    return nccl::kSuccess;
  }
  std::vector<QueuedCall> one;
  one.push_back(std::move(call));
  return run_all(std::move(one));
}

nccl::Result Group::take_over(std::vector<NewCommunicator> made) {
  if (depth_ == 0) return take_over_now(made);
  std::move(made.begin(), made.end(), std::back_inserter(made_));
  return nccl::kSuccess;
}

}  // namespace onebit::shim
