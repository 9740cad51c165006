// The C API of the optimizers: checks arguments, and translates configurations to options and back.

#include <onebit/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "api/handle.h"
#include "api/result.h"
#include "base/log.h"
#include "base/settings.h"
#include "optimizer/device_exchange.h"
#include "optimizer/optimizer.h"

using onebit::Code;
using onebit::DataType;
using onebit::Result;
using onebit::Status;
using onebit::api::guarded;
using onebit::api::not_null;
using onebit::api::number_of;
using onebit::optimizer::Exchange;
using onebit::optimizer::GroupOptions;
using onebit::optimizer::Kind;
using onebit::optimizer::Optimizer;
using onebit::optimizer::Options;
using onebit::optimizer::TensorSpec;

static_assert(ONEBIT_FREEZE_AUTO == Options::kAutomatic);

struct onebitOptimizer {
  std::unique_ptr<Optimizer> optimizer;
};

namespace {

onebitGroup_t group_of(const GroupOptions& group) {
  return {group.lr,           group.beta1,     group.beta2,    group.eps,
          group.weight_decay, group.max_coeff, group.min_coeff};
}

GroupOptions options_of(const onebitGroup_t& group) {
  return {group.lr,           group.beta1,     group.beta2,    group.eps,
          group.weight_decay, group.max_coeff, group.min_coeff};
}

onebitOptimizerConfig_t config_of(const Options& options) {
  onebitOptimizerConfig_t config{};
  config.size = sizeof config;
  config.type = static_cast<onebitOptimizerType_t>(options.kind);
  config.group = group_of(options.all);
  config.bias_correction = options.bias_correction ? 1 : 0;
  config.freeze_step = options.freeze_step;
  config.coeff_beta = options.coeff_beta;
  config.factor_max = options.factor_max;
  config.factor_min = options.factor_min;
  config.factor_threshold = options.factor_threshold;
  config.var_freeze_step = options.var_freeze_step;
  config.var_update_scaler = options.var_update_scaler;
  config.local_step_scaler = options.local_step_scaler;
  config.local_step_clipper = options.local_step_clipper;
  config.gradient_clipping = options.gradient_clipping;
  config.deepspeed_compat = options.deepspeed_compat ? 1 : 0;
  config.bound_moves = options.bound_moves ? 1 : 0;
  config.norm_factor = options.norm_factor ? 1 : 0;
  return config;
}

Result<Options> options_of(const onebitOptimizerConfig_t& config) {
  if (config.size != sizeof(onebitOptimizerConfig_t)) {
    return Status::error(Code::kInvalidArgument,
                         "config.size is {}, this library knows {}: start from onebitOptimizerConfigInit",
                         config.size, sizeof(onebitOptimizerConfig_t));
  }
  Options options;
  options.kind = static_cast<Kind>(std::clamp(number_of(config.type), 0, 255));
  options.all = options_of(config.group);
  if (config.ngroups != 0) ONEBIT_RETURN_IF_ERROR(not_null(config.groups, "config.groups"));
  for (std::size_t i = 0; i < config.ngroups; ++i) options.groups.push_back(options_of(config.groups[i]));
  options.bias_correction = config.bias_correction != 0;
  options.freeze_step = config.freeze_step;
  options.coeff_beta = config.coeff_beta;
  options.factor_max = config.factor_max;
  options.factor_min = config.factor_min;
  options.factor_threshold = config.factor_threshold;
  options.var_freeze_step = config.var_freeze_step;
  options.var_update_scaler = config.var_update_scaler;
  options.local_step_scaler = config.local_step_scaler;
  options.local_step_clipper = config.local_step_clipper;
  options.gradient_clipping = config.gradient_clipping;
  options.deepspeed_compat = config.deepspeed_compat != 0;
  options.bound_moves = config.bound_moves != 0;
  options.norm_factor = config.norm_factor != 0;
  if (config.name != nullptr && *config.name != '\0') options.name = config.name;
  return options;
}

onebit::Result<onebit::Settings> settings_of(const onebitDevice_t& device) {
  if (device.size != sizeof(onebitDevice_t)) {
    return Status::error(Code::kInvalidArgument,
                         "device.size is {}, this library knows {}: start from ONEBIT_DEVICE_INITIALIZER",
                         device.size, sizeof(onebitDevice_t));
  }
  ONEBIT_ASSIGN_OR_RETURN(auto settings, onebit::Settings::from_environment());
  if (device.settings != nullptr) ONEBIT_RETURN_IF_ERROR(onebit::apply_settings(settings, device.settings));
  onebit::set_log_level(settings.debug);
  return settings;
}

TensorSpec spec_of(const onebitTensor_t& tensor) {
  TensorSpec spec;
  if (tensor.name != nullptr) spec.name = tensor.name;
  spec.parameters = tensor.parameters;
  spec.count = tensor.count;
  // Numbers that are no floating type are refused by the layout, as integers are.
  const auto type = [](int number) { return static_cast<DataType>(std::clamp(number, 0, 255)); };
  spec.type = type(number_of(tensor.datatype));
  spec.gradient_type = type(number_of(tensor.gradient_datatype));
  spec.group = tensor.group;
  spec.mask = tensor.mask;
  return spec;
}

/// The optimizer of checked arguments; whatever fails, the exchange hears of it.
Result<std::unique_ptr<Optimizer>> make_optimizer(const onebitOptimizerConfig_t* config,
                                                  const onebitTensor_t* tensors, size_t ntensors,
                                                  const std::shared_ptr<Exchange>& exchange) {
  ONEBIT_RETURN_IF_ERROR(not_null(config, "config"));
  if (ntensors != 0) ONEBIT_RETURN_IF_ERROR(not_null(tensors, "tensors"));
  ONEBIT_ASSIGN_OR_RETURN(const Options options, options_of(*config));
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < ntensors; ++i) specs.push_back(spec_of(tensors[i]));
  return Optimizer::create(options, std::move(specs), exchange);
}

Status create(onebitOptimizer_t* optimizer, const onebitOptimizerConfig_t* config,
              const onebitTensor_t* tensors, size_t ntensors, const std::shared_ptr<Exchange>& exchange) {
  auto made = std::make_unique<onebitOptimizer>();
  auto result = make_optimizer(config, tensors, ntensors, exchange);
  ONEBIT_RETURN_IF_ERROR(exchange->made(result.status()));
  made->optimizer = std::move(*result);
  *optimizer = made.release();
  return Status();
}

}  // namespace

onebitResult_t onebitOptimizerConfigInit(onebitOptimizerType_t type, onebitOptimizerConfig_t* config) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(config, "config"));
    const Options options =
        onebit::optimizer::default_options(static_cast<Kind>(std::clamp(number_of(type), 0, 255)));
    ONEBIT_RETURN_IF_ERROR(validate(options));
    *config = config_of(options);
    return Status();
  });
}

onebitResult_t onebitOptimizerParseConfig(const char* json, onebitOptimizerConfig_t* config) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(json, "json"));
    ONEBIT_RETURN_IF_ERROR(not_null(config, "config"));
    ONEBIT_ASSIGN_OR_RETURN(const Options options, onebit::optimizer::parse_deepspeed(json));
    *config = config_of(options);
    return Status();
  });
}

onebitResult_t onebitOptimizerCreate(onebitOptimizer_t* optimizer, const onebitOptimizerConfig_t* config,
                                     const onebitTensor_t* tensors, size_t ntensors, onebitComm_t comm) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    *optimizer = nullptr;
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(comm->communicator->in_own_process());
    return create(optimizer, config, tensors, ntensors,
                  onebit::optimizer::make_exchange(*comm->communicator));
  });
}

onebitResult_t onebitOptimizerCreateOnDevice(onebitOptimizer_t* optimizer,
                                             const onebitOptimizerConfig_t* config,
                                             const onebitTensor_t* tensors, size_t ntensors,
                                             const onebitDevice_t* device) {
  const void* const caller = __builtin_return_address(0);
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    *optimizer = nullptr;
    ONEBIT_RETURN_IF_ERROR(not_null(device, "device"));
    ONEBIT_ASSIGN_OR_RETURN(const onebit::Settings settings, settings_of(*device));
    ONEBIT_ASSIGN_OR_RETURN(auto exchange, onebit::optimizer::make_device_exchange(
                                               settings, {device->nccl_comm, device->stream, caller}));
    return create(optimizer, config, tensors, ntensors, std::move(exchange));
  });
}

onebitResult_t onebitOptimizerDestroy(onebitOptimizer_t optimizer) {
  return guarded([&] {
    const std::unique_ptr<onebitOptimizer> owned(optimizer);
    return Status();
  });
}

onebitResult_t onebitOptimizerStep(onebitOptimizer_t optimizer, const void* const* gradients, int* skipped) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    const std::size_t tensors = optimizer->optimizer->core().tensors();
    if (tensors != 0) ONEBIT_RETURN_IF_ERROR(not_null(gradients, "gradients"));
    bool was_skipped = false;
    ONEBIT_RETURN_IF_ERROR(optimizer->optimizer->step({gradients, tensors}, &was_skipped));
    if (skipped != nullptr) *skipped = was_skipped ? 1 : 0;
    return Status();
  });
}

onebitResult_t onebitOptimizerSetLearningRate(onebitOptimizer_t optimizer, size_t group, double lr) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    return optimizer->optimizer->set_learning_rate(group, lr);
  });
}

onebitResult_t onebitOptimizerFreeze(onebitOptimizer_t optimizer) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    return optimizer->optimizer->freeze();
  });
}

onebitResult_t onebitOptimizerGetInfo(onebitOptimizer_t optimizer, onebitOptimizerInfo_t* info) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(info, "info"));
    const Optimizer& own = *optimizer->optimizer;
    onebitOptimizerInfo_t full{};
    full.size = std::min(info->size, sizeof full);
    full.steps = own.steps();
    full.skipped_steps = own.skipped_steps();
    full.compressed = own.stage() == onebit::optimizer::Stage::kCompressed ? 1 : 0;
    full.in_common = own.in_common() ? 1 : 0;
    full.memory = own.memory();
    full.full_bytes = own.traffic().full;
    full.compressed_bytes = own.traffic().compressed;
    full.fp32_bytes = own.traffic().as_fp32;
    std::memcpy(info, &full, full.size);
    return Status();
  });
}

onebitResult_t onebitOptimizerResidualNorm(onebitOptimizer_t optimizer, double* worker, double* owner) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(worker, "worker"));
    ONEBIT_RETURN_IF_ERROR(not_null(owner, "owner"));
    onebit::collective::ResidualSquares sum;
    Exchange& exchange = optimizer->optimizer->core().exchange();
    for (std::size_t unit = 0; unit < exchange.units(); ++unit) {
      ONEBIT_ASSIGN_OR_RETURN(const auto* const residual, exchange.residual(unit));
      sum += squares(*residual);
    }
    *worker = std::sqrt(sum.worker);
    *owner = std::sqrt(sum.owner);
    return Status();
  });
}

onebitResult_t onebitOptimizerGetState(onebitOptimizer_t optimizer, size_t tensor, const char* name,
                                       float* values, size_t count) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(name, "name"));
    if (count != 0) ONEBIT_RETURN_IF_ERROR(not_null(values, "values"));
    return optimizer->optimizer->read_state(tensor, name, {values, count});
  });
}

onebitResult_t onebitOptimizerGetCoefficient(onebitOptimizer_t optimizer, size_t tensor, double* value) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(value, "value"));
    ONEBIT_ASSIGN_OR_RETURN(*value, optimizer->optimizer->coefficient(tensor));
    return Status();
  });
}

onebitResult_t onebitOptimizerSave(onebitOptimizer_t optimizer, const char* directory) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(directory, "directory"));
    return optimizer->optimizer->save(directory);
  });
}

onebitResult_t onebitOptimizerSaveWhole(onebitOptimizer_t optimizer, const char* directory) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(directory, "directory"));
    return optimizer->optimizer->save_whole(directory);
  });
}

onebitResult_t onebitOptimizerLoad(onebitOptimizer_t optimizer, const char* directory) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(directory, "directory"));
    return optimizer->optimizer->load(directory);
  });
}

onebitResult_t onebitOptimizerLoadStep(onebitOptimizer_t optimizer, const char* directory, int64_t step) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(optimizer, "optimizer"));
    ONEBIT_RETURN_IF_ERROR(not_null(directory, "directory"));
    return optimizer->optimizer->load(directory, step);
  });
}
