// Parameter groups, learning rates of each step, and parameters and gradients of 16 bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "codec/convert.h"
#include "optimizer/training.h"

namespace onebit::testing {
namespace {

using collective::Communicator;
using ::testing::HasSubstr;

Status on_two_ranks(const std::function<Status(Communicator&)>& body) {
  return run_local_ranks(2, "", [&](int, Communicator& communicator) { return body(communicator); });
}

TEST(Groups, HaveTheirOwnHyperParameters) {
  for (const Kind kind : kAllKinds) {
    SCOPED_TRACE(name_of(kind));
    // Two groups, given in no order; each is as an optimizer of its own would have it, where layers are
    // independent of each other: at full precision.
    Options both = short_options(kind);
    both.groups.assign(2, both.all);
    both.groups[1].lr = 0.003;
    both.groups[1].beta1 = 0.8;
    both.groups[1].weight_decay = 0.1;
    Options second = both;
    second.groups = {both.groups[1]};
    ASSERT_TRUE(ok(on_two_ranks([&](Communicator& communicator) -> Status {
      Worker together(both, {50, 70, 20}, communicator, [](std::vector<TensorSpec>& tensors) {
        tensors[0].group = 1;
        tensors[1].group = 0;
        tensors[2].group = 1;
      });
      Worker alone(second, {50}, communicator);
      ONEBIT_RETURN_IF_ERROR(together.status);
      const int full = kind == Kind::kZeroOneAdam ? 4 : 20;
      for (int step = 1; step <= full; ++step) {
        together.set_gradients(step);
        alone.set_gradients(step);
        std::copy_n(together.gradients.begin(), 50, alone.gradients.begin());
        ONEBIT_RETURN_IF_ERROR(together.take());
        ONEBIT_RETURN_IF_ERROR(alone.take());
        EXPECT_TRUE(same_bits({together.parameters.data(), 50}, alone.parameters)) << step;
      }
      for (int step = full + 1; step <= 50; ++step) ONEBIT_RETURN_IF_ERROR(together.step(step));
      for (const float w : together.parameters) EXPECT_LT(std::abs(w), 10);
      return Status();
    })));
  }
}

TEST(LearningRate, OfAGroupIsThatOfTheNextStep) {
  for (const Kind kind : kAllKinds) {
    SCOPED_TRACE(name_of(kind));
    Options options = short_options(kind);
    options.groups.assign(2, options.all);
    ASSERT_TRUE(ok(on_two_ranks([&](Communicator& communicator) -> Status {
      Worker worker(options, {30, 30}, communicator,
                    [](std::vector<TensorSpec>& tensors) { tensors[1].group = 1; });
      EXPECT_THAT(worker->set_learning_rate(2, 1).message(), HasSubstr("group 2 of 2"));
      EXPECT_THAT(worker->set_learning_rate(0, -1).message(), HasSubstr("lr is -1"));
      ONEBIT_RETURN_IF_ERROR(worker->set_learning_rate(1, 0));
      const auto before = worker.parameters;
      ONEBIT_RETURN_IF_ERROR(worker.step(1));
      for (std::size_t i = 0; i < 60; ++i) EXPECT_EQ(worker.parameters[i] == before[i], i >= 30);
      ONEBIT_RETURN_IF_ERROR(worker->set_learning_rate(1, 0.5));
      ONEBIT_RETURN_IF_ERROR(worker.step(2));
      for (std::size_t i = 30; i < 60; ++i) EXPECT_NE(worker.parameters[i], before[i]);
      return Status();
    })));
  }
}

TEST(SixteenBits, OfParametersAreTheMastersRounded) {
  for (const Kind kind : kAllKinds) {
    for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
      SCOPED_TRACE(std::string(name_of(kind)) + " " + std::string(onebit::name_of(type)));
      const std::vector<std::size_t> sizes{70, 2100};
      ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
        Worker wide(short_options(kind), sizes, communicator);
        const auto narrow_of = [&](float value) {
          return type == DataType::kFloat16 ? codec::float_to_half(value) : codec::float_to_bfloat16(value);
        };
        const auto wide_of = [&](std::uint16_t bits) {
          return type == DataType::kFloat16 ? codec::half_to_float(bits) : codec::bfloat16_to_float(bits);
        };
        std::vector<std::uint16_t> parameters(wide.parameters.size()), gradients(wide.parameters.size());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          parameters[i] = narrow_of(wide.parameters[i]);
          wide.parameters[i] = wide_of(parameters[i]);  // the same start
        }
        Worker narrow(short_options(kind), sizes, communicator, [&](std::vector<TensorSpec>& tensors) {
          for (std::size_t t = 0, at = 0; t < tensors.size(); at += sizes[t++]) {
            tensors[t].parameters = parameters.data() + at;
            tensors[t].type = type;
            tensors[t].gradient_type = type;
          }
        });
        narrow.pointers = {gradients.data(), gradients.data() + sizes[0]};
        for (int step = 1; step <= 45; ++step) {
          wide.set_gradients(step);
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            gradients[i] = narrow_of(wide.gradients[i]);
            wide.gradients[i] = wide_of(gradients[i]);
          }
          ONEBIT_RETURN_IF_ERROR(wide.take());
          ONEBIT_RETURN_IF_ERROR(narrow.take());
          for (std::size_t i = 0; i < parameters.size(); ++i) {
            EXPECT_EQ(parameters[i], narrow_of(wide.parameters[i])) << "step " << step << ", element " << i;
          }
        }
        return Status();
      })));
    }
  }
}

TEST(SixteenBits, InTheOriginalsFormAreExchangedByGroup) {
  Options options = short_options(Kind::kOneBitAdam);
  options.deepspeed_compat = true;
  ASSERT_TRUE(ok(on_two_ranks([&](Communicator& communicator) -> Status {
    std::vector<std::uint16_t> parameters(60);
    Worker worker(options, {10, 50}, communicator, [&](std::vector<TensorSpec>& tensors) {
      for (std::size_t t = 0; t < 2; ++t) {
        tensors[t].type = DataType::kBFloat16;
        tensors[t].parameters = parameters.data() + 10 * t;
      }
    });
    ONEBIT_RETURN_IF_ERROR(worker.status);
    EXPECT_EQ(worker->core().exchange().units(), 1U);
    EXPECT_EQ(worker.worker_errors()[0].size(), 64U);
    return worker.step(1);
  })));
}

TEST(Tensors, ThatAreWrongAreNamed) {
  struct Case {
    std::function<void(std::vector<TensorSpec>&)> change;
    const char* words;
  };
  const Case cases[] = {
      {[](std::vector<TensorSpec>& t) { t[1].parameters = nullptr; }, "tensor 1 'layer1': its parameters"},
      {[](std::vector<TensorSpec>& t) { t[1].type = DataType::kInt64; },
       "tensor 1 'layer1': parameters and gradients"},
      {[](std::vector<TensorSpec>& t) { t[0].gradient_type = DataType::kFloat64; }, "tensor 0 'layer0'"},
      {[](std::vector<TensorSpec>& t) { t[1].group = 1; }, "group 1, of 1"},
      {[](std::vector<TensorSpec>& t) { t[1].name = "layer0"; }, "two tensors are named 'layer0'"},
  };
  auto communicator = lone_communicator();
  ASSERT_TRUE(ok(communicator.status()));
  for (const Case& each : cases) {
    Worker worker(short_options(Kind::kAdam), {3, 4}, **communicator, each.change);
    EXPECT_EQ(worker.status.code(), Code::kInvalidArgument);
    EXPECT_THAT(worker.status.message(), HasSubstr(each.words));
  }
}

TEST(Gradients, OfAnotherNumberThanTensorsAreRefused) {
  auto communicator = lone_communicator();
  ASSERT_TRUE(ok(communicator.status()));
  Worker worker(short_options(Kind::kAdam), {3, 4}, **communicator);
  worker.pointers.pop_back();
  EXPECT_THAT(worker.step(1).message(), HasSubstr("1 gradients for 2 tensors"));
}

TEST(NoTensors, AreSteppedLikeAny) {
  for (const Kind kind : kAllKinds) {
    for (const auto& sizes : {std::vector<std::size_t>{}, {0}, {1}}) {
      for (const auto& end : train(3, short_options(kind), 50, sizes)) {
        for (const float w : end) EXPECT_TRUE(std::isfinite(w));
      }
    }
  }
}

}  // namespace
}  // namespace onebit::testing
