// Hyper-parameters: each that is out of its range is named with its range; DeepSpeed's sections are read as
// they are, and what would have no effect is an error that says what to do.

#include "optimizer/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace onebit::optimizer {
namespace {

using ::testing::HasSubstr;

struct Wrong {
  const char* name;
  const char* range;
  Kind kind;
  void (*set)(Options&);
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Wrong kWrong[] = {
    {"lr", "from 0", Kind::kAdam, [](Options& o) { o.all.lr = -1; }},
    {"lr", "finite", Kind::kOneBitLamb, [](Options& o) { o.all.lr = kNan; }},
    {"lr", "finite", Kind::kOneBitLamb, [](Options& o) { o.all.lr = kInfinity; }},
    {"betas[0]", "below 1", Kind::kLamb, [](Options& o) { o.all.beta1 = 1; }},
    {"betas[0]", "from 0", Kind::kLamb, [](Options& o) { o.all.beta1 = -0.1; }},
    {"betas[1]", "below 1", Kind::kZeroOneAdam, [](Options& o) { o.all.beta2 = 1; }},
    {"eps", "to 1", Kind::kAdam, [](Options& o) { o.all.eps = 0; }},
    {"eps", "to 1", Kind::kAdam, [](Options& o) { o.all.eps = 1e-60; }},
    {"weight_decay", "from 0", Kind::kAdam, [](Options& o) { o.all.weight_decay = -1; }},
    {"max_coeff", "above 0", Kind::kLamb, [](Options& o) { o.all.max_coeff = 0; }},
    {"min_coeff", "to max_coeff", Kind::kLamb, [](Options& o) { o.all.min_coeff = 11; }},
    {"gradient_clipping", "from 0", Kind::kLamb, [](Options& o) { o.gradient_clipping = -1; }},
    {"deepspeed_compat", "1-bit", Kind::kAdam, [](Options& o) { o.deepspeed_compat = true; }},
    {"freeze_step", "from 1", Kind::kOneBitAdam, [](Options& o) { o.freeze_step = 0; }},
    {"freeze_step", "from 1", Kind::kOneBitLamb, [](Options& o) { o.freeze_step = -2; }},
    {"freeze_step", "at least 2", Kind::kOneBitLamb,
     [](Options& o) {
       o.freeze_step = 1;
       o.deepspeed_compat = true;
     }},
    {"freeze_step", "set a number", Kind::kOneBitLamb,
     [](Options& o) {
       o.freeze_step = Options::kAutomatic;
       o.deepspeed_compat = true;
     }},
    {"coeff_beta", "below 1", Kind::kOneBitLamb, [](Options& o) { o.coeff_beta = 1; }},
    {"factor_max", "above 0", Kind::kOneBitLamb, [](Options& o) { o.factor_max = 0; }},
    {"factor_min", "up to factor_max", Kind::kOneBitLamb, [](Options& o) { o.factor_min = 5; }},
    {"factor_threshold", "below 1", Kind::kOneBitLamb, [](Options& o) { o.factor_threshold = 1; }},
    {"var_freeze_step", "from 1", Kind::kZeroOneAdam, [](Options& o) { o.var_freeze_step = 0; }},
    {"var_update_scaler", "from 1", Kind::kZeroOneAdam, [](Options& o) { o.var_update_scaler = 0; }},
    {"local_step_scaler", "from 1", Kind::kZeroOneAdam, [](Options& o) { o.local_step_scaler = -1; }},
    {"local_step_clipper", "from 1", Kind::kZeroOneAdam, [](Options& o) { o.local_step_clipper = 0; }},
};

TEST(Options, OutOfTheirRangeAreNamedWithTheRange) {
  for (const Wrong& wrong : kWrong) {
    Options options = default_options(wrong.kind);
    ASSERT_TRUE(validate(options).ok());
    wrong.set(options);
    const Status status = validate(options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << wrong.name;
    EXPECT_THAT(status.message(), HasSubstr(wrong.name));
    EXPECT_THAT(status.message(), HasSubstr(wrong.range));
  }
}

TEST(Options, OfAGroupAreNamedWithTheGroup) {
  Options options = default_options(Kind::kAdam);
  options.groups.resize(3);
  options.groups[2].eps = 2;
  EXPECT_THAT(validate(options).message(), HasSubstr("group 2: eps"));
}

TEST(Section, OfEachTypeIsReadAsItIs) {
  auto lamb = parse_deepspeed(R"({"type": "OneBitLamb", "params": {
      "lr": 11e-3, "max_coeff": 0.3, "min_coeff": 0.01, "freeze_step": 1000, "cuda_aware": false,
      "comm_backend_name": "nccl", "coeff_beta": 0.9, "factor_max": 4.0, "factor_min": 0.5,
      "factor_threshold": 0.1, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.01}})");
  ASSERT_TRUE(lamb.ok()) << lamb.status().message();
  EXPECT_EQ(lamb->kind, Kind::kOneBitLamb);
  EXPECT_EQ(lamb->all.lr, 11e-3);
  EXPECT_EQ(lamb->all.max_coeff, 0.3);
  EXPECT_EQ(lamb->all.beta1, 0.8);
  EXPECT_EQ(lamb->all.beta2, 0.99);
  EXPECT_EQ(lamb->all.eps, 1e-6);
  EXPECT_EQ(lamb->all.weight_decay, 0.01);
  EXPECT_EQ(lamb->freeze_step, 1000);

  auto adam = parse_deepspeed(R"({"type": "onebitadam", "params": {"lr": 4e-4, "freeze_step": 23000}})");
  ASSERT_TRUE(adam.ok());
  EXPECT_EQ(adam->kind, Kind::kOneBitAdam);
  EXPECT_EQ(adam->freeze_step, 23000);

  auto zero_one = parse_deepspeed(R"({"type": "ZeroOneAdam", "params": {"lr": 1e-3, "weight_decay": 0.01,
      "bias_correction": false, "var_freeze_step": 1000, "var_update_scaler": 16, "local_step_scaler": 1000,
      "local_step_clipper": 16, "cuda_aware": false, "comm_backend_name": "mpi"}})");
  ASSERT_TRUE(zero_one.ok()) << zero_one.status().message();
  EXPECT_EQ(zero_one->kind, Kind::kZeroOneAdam);
  EXPECT_EQ(zero_one->var_freeze_step, 1000);
  EXPECT_FALSE(zero_one->corrects_bias());
  EXPECT_EQ(zero_one->local_step_scaler, 1000);

  for (const char* section : {R"({"type": "Lamb"})", R"({"type": "Adam", "params": {"adam_w_mode": true}})",
                              R"({"type": "AdamW", "params": {"bias_correction": true}})"}) {
    EXPECT_TRUE(parse_deepspeed(section).ok()) << section;
  }
}

TEST(Section, MayAskForOurOwn) {
  const auto options = parse_deepspeed(
      R"({"type": "OneBitAdam", "params": {"freeze_step": "auto", "gradient_clipping": 1.0}})");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->freeze_step, Options::kAutomatic);
  EXPECT_EQ(options->gradient_clipping, 1);
  EXPECT_TRUE(options->bound_moves);
  const auto papers = parse_deepspeed(R"({"type": "OneBitLamb", "params": {"norm_factor": false}})");
  ASSERT_TRUE(papers.ok());
  EXPECT_FALSE(papers->norm_factor);
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam, Kind::kZeroOneAdam}) {
    EXPECT_TRUE(default_options(kind).factor_by_norms());
    EXPECT_TRUE(default_options(kind).corrects_bias());
  }
  const auto unbounded = parse_deepspeed(R"({"type": "ZeroOneAdam", "params": {"bound_moves": false}})");
  ASSERT_TRUE(unbounded.ok());
  EXPECT_FALSE(unbounded->bound_moves);
  const auto compat = parse_deepspeed(R"({"type": "ZeroOneAdam", "params": {"deepspeed_compat": true}})");
  ASSERT_TRUE(compat.ok());
  EXPECT_FALSE(compat->corrects_bias());
  EXPECT_FALSE(compat->factor_by_norms());
  EXPECT_EQ(compat->local_step_scaler, 32678);  // the original's default
  EXPECT_EQ(default_options(Kind::kZeroOneAdam).local_step_scaler, 32768);
}

TEST(Section, ThatCannotBeMeantIsAnErrorThatSaysWhatToDo) {
  const struct {
    const char* section;
    std::vector<const char*> words;
  } cases[] = {
      {"", {"JSON"}},
      {"{\"type\": \"OneBitLamb\"", {"JSON"}},
      {"[1]", {"object"}},
      {"{}", {"type"}},
      {R"({"type": 3})", {"type"}},
      {R"({"type": "Muon"})", {"Muon", "OneBitLamb"}},
      {R"({"type": "Adam", "params": 3})", {"params"}},
      {R"({"type": "Adam", "parms": {}})", {"parms", "remove"}},
      {R"({"type": "OneBitLamb", "params": {"warmup": 3}})", {"warmup", "remove"}},
      {R"({"type": "OneBitAdam", "params": {"max_coeff": 3}})", {"max_coeff", "OneBitAdam"}},
      {R"({"type": "ZeroOneAdam", "params": {"freeze_step": 3}})", {"freeze_step"}},
      {R"({"type": "Adam", "params": {"freeze_step": 3}})", {"freeze_step"}},
      {R"({"type": "Lamb", "params": {"bound_moves": false}})", {"bound_moves", "Lamb"}},
      {R"({"type": "OneBitLamb", "params": {"bound_moves": 0}})", {"bound_moves", "true or false"}},
      {R"({"type": "OneBitAdam", "params": {"bias_correction": 1}})", {"bias_correction", "true or false"}},
      {R"({"type": "Adam", "params": {"norm_factor": true}})", {"norm_factor", "Adam"}},
      {R"({"type": "OneBitAdam", "params": {"amsgrad": true}})", {"amsgrad", "remove"}},
      {R"({"type": "OneBitLamb", "params": {"max_grad_norm": 1.0}})", {"max_grad_norm", "gradient_clipping"}},
      {R"({"type": "OneBitLamb", "params": {"eps_inside_sqrt": true}})", {"eps_inside_sqrt"}},
      {R"({"type": "OneBitLamb", "params": {"cuda_aware": true}})", {"cuda_aware", "MPI"}},
      {R"({"type": "Adam", "params": {"adam_w_mode": false}})", {"adam_w_mode", "decoupled"}},
      {R"({"type": "OneBitLamb", "params": {"lr": "high"}})", {"lr", "number"}},
      {R"({"type": "OneBitLamb", "params": {"betas": [0.9]}})", {"betas", "two"}},
      {R"({"type": "OneBitLamb", "params": {"freeze_step": 1.5}})", {"freeze_step", "whole"}},
      {R"({"type": "OneBitLamb", "params": {"freeze_step": "soon"}})", {"freeze_step", "auto"}},
      {R"({"type": "OneBitLamb", "params": {"freeze_step": -1}})", {"freeze_step", "from 0"}},
      {R"({"type": "OneBitLamb", "params": {"freeze_step": 1e30}})", {"freeze_step"}},
      {R"({"type": "OneBitLamb", "params": {"freeze_step": 0}})", {"freeze_step", "from 1"}},
      {R"({"type": "OneBitLamb", "params": {"lr": -1}})", {"lr", "from 0"}},
  };
  for (const auto& each : cases) {
    const auto options = parse_deepspeed(each.section);
    ASSERT_FALSE(options.ok()) << each.section;
    EXPECT_EQ(options.status().code(), Code::kInvalidArgument);
    for (const char* word : each.words)
      EXPECT_THAT(options.status().message(), HasSubstr(word)) << each.section;
  }
}

}  // namespace
}  // namespace onebit::optimizer
