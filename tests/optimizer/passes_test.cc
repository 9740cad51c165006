// The passes: every implementation gives the same bits as the others, whatever the length, and what passes.h
// says.

#include "optimizer/passes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "codec/convert.h"
#include "support/ranks.h"

namespace onebit::optimizer {
namespace {

using onebit::testing::Random;

constexpr std::size_t kLengths[] = {0, 1, 3, 7, 8, 15, 16, 17, 63, 64, 65, 100, 127, 2047, kBlock};

/// All arrays of a block.
struct Block {
  std::vector<float> g, x, m, v, f, w, z, c;

  explicit Block(std::size_t n) {
    Random random(n + 5);
    for (auto* array : all()) {
      array->resize(n);
      for (float& value : *array) value = random.unit();
    }
    for (float& value : v) value = value < -0.5F ? 0.0F : std::abs(value);
    for (float& value : f) value = std::abs(value);
  }
  std::vector<std::vector<float>*> all() { return {&g, &x, &m, &v, &f, &w, &z, &c}; }
  Arrays arrays() { return {g.data(), x.data(), m.data(), v.data(), f.data(), w.data(), z.data(), c.data()}; }
};

Scalars scalars() {
  Scalars s;
  s.beta1 = 0.9F;
  s.rest1 = 0.1F;
  s.inverse1 = 10;
  s.beta2 = 0.999F;
  s.rest2 = 0.001F;
  s.eps = 1e-8F;
  s.weight_decay = 0.01F;
  s.step = 0.02F;
  s.root_scale = 1.5F;
  s.gradient_scale = 0.7F;
  s.momentum_factor = 0.3F;
  s.previous_factor = 0.4F;
  s.exchange_scale = 3.0F;
  s.window = 0.05F;
  s.accumulated_decay = 0.002F;
  return s;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(Passes, OfAllImplementationsGiveTheSameBitsForEveryLength) {
  ASSERT_GE(passes().size(), 2U);
  for (const std::size_t n : kLengths) {
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      for (const bool masked : {false, true}) {
        Block first(n);
        const Partial due = passes()[0].kernel(static_cast<Pass>(pass), masked)(scalars(), first.arrays(), n);
        for (const Passes& implementation : passes()) {
          SCOPED_TRACE(std::string(implementation.name) + ", pass " + std::to_string(pass) + ", n " +
                       std::to_string(n));
          Block block(n);
          const Partial got =
              implementation.kernel(static_cast<Pass>(pass), masked)(scalars(), block.arrays(), n);
          EXPECT_EQ(std::memcmp(&got, &due, sizeof got), 0);
          for (std::size_t i = 0; i < block.all().size(); ++i)
            EXPECT_TRUE(same(*block.all()[i], *first.all()[i])) << i;
        }
      }
    }
  }
}

/// The pass written down once more, in fp64, an element at a time.
struct Element {
  double g, x, m, v, f, w, z, c;
};

void expect_pass(Pass pass, bool masked, void (*due)(Element& e, const Scalars& s, bool live),
                 Partial* partial = nullptr) {
  const std::size_t n = 1000;
  Block block(n), before(n);
  const Scalars s = scalars();
  const Partial got = passes().back().kernel(pass, masked)(s, block.arrays(), n);
  if (partial != nullptr) *partial = got;
  for (std::size_t i = 0; i < n; ++i) {
    Element e{before.g[i], before.x[i], before.m[i], before.v[i],
              before.f[i], before.w[i], before.z[i], before.c[i]};
    due(e, s, !masked || before.v[i] > 0);
    const double expected[] = {e.g, e.x, e.m, e.v, e.f, e.w, e.z, e.c};
    for (std::size_t k = 0; k < 8; ++k) {
      const double tolerance = 1e-6 * (1 + std::abs(expected[k])) * (before.v[i] > 0 ? 1 : 4);
      ASSERT_NEAR((*block.all()[k])[i], expected[k], tolerance)
          << "pass " << static_cast<int>(pass) << ", array " << k;
    }
  }
}

double root(const Element& e, const Scalars& s) {
  return std::sqrt(e.v) * static_cast<double>(s.root_scale) + static_cast<double>(s.eps);
}

TEST(Passes, OfTheWarmUpDoWhatTheirEquationsSay) {
  expect_pass(Pass::kGather, false, [](Element& e, const Scalars& s, bool) { e.x = e.g * s.gradient_scale; });
  expect_pass(Pass::kMomentum, false, [](Element& e, const Scalars& s, bool) {
    e.x = (s.beta1 * e.m * s.momentum_factor + s.rest1 * e.g * s.gradient_scale) * s.exchange_scale;
  });
  expect_pass(Pass::kAdam, false, [](Element& e, const Scalars& s, bool) {
    const double a = e.x * s.gradient_scale;
    e.m = s.beta1 * e.m + s.rest1 * a;
    e.v = s.beta2 * e.v + s.rest2 * a * a;
    e.w -= s.step * (e.m * s.momentum_factor / root(e, s) + s.weight_decay * e.w);
  });
  expect_pass(Pass::kLambNorms, false, [](Element& e, const Scalars& s, bool) {
    const double a = e.x * s.gradient_scale;
    e.m = s.beta1 * e.m + s.rest1 * a;
    e.v = s.beta2 * e.v + s.rest2 * a * a;
  });
}

TEST(Passes, WithAMaskTakeMomentumAndMoveFromElementsWithoutVariance) {
  expect_pass(Pass::kApply, true, [](Element& e, const Scalars& s, bool live) {
    e.m = live ? e.m : 0;
    e.w -= s.step * (e.m * s.momentum_factor / root(e, s) + s.weight_decay * e.w);
  });
  expect_pass(Pass::kAdamKeepingVariance, true, [](Element& e, const Scalars& s, bool live) {
    e.m = live ? s.beta1 * e.m + s.rest1 * e.x : 0;
    e.w -= s.step * (e.m * s.momentum_factor / root(e, s) + s.weight_decay * e.w);
  });
  expect_pass(Pass::kLambFrozen, true, [](Element& e, const Scalars& s, bool live) {
    e.m = live ? e.m : 0;
    const double r = (e.m * s.momentum_factor - s.beta1 * e.x * s.previous_factor) / s.rest1;
    e.f = s.beta2 * e.f + s.rest2 * r * r;
  });
  expect_pass(Pass::kLocal, true, [](Element& e, const Scalars& s, bool live) {
    e.m = live ? s.beta1 * e.m + s.rest1 * e.g * s.gradient_scale : 0;
    e.z -= s.step * (e.m / root(e, s) + s.accumulated_decay * e.w);
    e.w -= s.step * (e.m / root(e, s) + s.weight_decay * e.w);
  });
  expect_pass(Pass::kSyncPrepare, true, [](Element& e, const Scalars& s, bool live) {
    const double m = live ? s.beta1 * e.m + s.rest1 * e.g * s.gradient_scale : 0;
    e.x = (e.z - s.step * (m / root(e, s) + s.accumulated_decay * e.w)) * root(e, s);
  });
  expect_pass(Pass::kSyncFinish, true, [](Element& e, const Scalars& s, bool live) {
    const double x = live ? e.x : 0;
    e.m = -x / s.window;
    e.c = e.c - s.weight_decay * s.window * e.c + x / root(e, s);
    e.w = e.c;
    e.z = 0;
  });
}

TEST(Passes, KeepMovesWithinTheirBound) {
  for (const Pass pass :
       {Pass::kAdam, Pass::kApply, Pass::kAdamKeepingVariance, Pass::kLocal, Pass::kSyncFinish}) {
    Block block(100), before(100);
    Scalars s = scalars();
    s.bound = 2;
    s.weight_decay = 0;
    s.rest2 = 0;
    for (std::size_t i = 0; i < 100; ++i) {
      block.v[i] = 1e-14F;  // so that all moves would be huge
      block.c[i] = block.w[i];
    }
    passes().back().kernel(pass, true)(s, block.arrays(), 100);
    const float limit = 2 * (pass == Pass::kSyncFinish ? s.window : s.step);
    for (std::size_t i = 0; i < 100; ++i) {
      ASSERT_NEAR(std::abs(block.w[i] - before.w[i]), limit, 1e-6) << static_cast<int>(pass);
    }
  }
}

TEST(Passes, SumAndMaximumAreThoseOfAllElements) {
  Block block(kBlock);
  double squares = 0, weights = 0, momentum = 0, live_momentum = 0, zeros = 0;
  float largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    squares += std::pow(static_cast<double>(block.g[i]), 2);
    weights += std::pow(static_cast<double>(block.w[i]), 2);
    largest = std::max(largest, std::abs(block.g[i]));
    momentum += std::pow(static_cast<double>(block.m[i]), 2);
    if (block.v[i] > 0) live_momentum += std::pow(static_cast<double>(block.m[i]), 2);
    zeros += block.v[i] == 0 ? 1 : 0;
  }
  ASSERT_LT(live_momentum, momentum);
  const auto run = [&](Pass pass, bool masked) {
    Block fresh(kBlock);
    return passes().back().kernel(pass, masked)(scalars(), fresh.arrays(), kBlock);
  };
  EXPECT_NEAR(run(Pass::kCheck, false).first, squares, squares * 1e-6);
  EXPECT_EQ(run(Pass::kCheck, false).largest, largest);
  EXPECT_NEAR(run(Pass::kLambNorms, false).first, weights, weights * 1e-6);
  EXPECT_NEAR(run(Pass::kNorms, false).first, momentum, momentum * 1e-6);
  EXPECT_NEAR(run(Pass::kNorms, true).first, live_momentum, live_momentum * 1e-6);
  EXPECT_NEAR(run(Pass::kNorms, true).second, weights, weights * 1e-6);
  EXPECT_EQ(run(Pass::kVarianceNorm, false).second, static_cast<float>(zeros));
}

TEST(Passes, FindOutGradientsThatAreNotFinite) {
  for (const Passes& implementation : passes()) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 2e12F}) {
      for (const std::size_t at : {std::size_t{0}, std::size_t{64}, std::size_t{99}}) {
        for (const Pass pass : {Pass::kCheck, Pass::kGather, Pass::kMomentum, Pass::kSyncPrepare}) {
          Block block(100);
          block.g[at] = bad;
          const Partial partial = implementation.kernel(pass, false)(scalars(), block.arrays(), 100);
          EXPECT_FALSE(partial.largest <= kLargestGradient) << implementation.name;
        }
      }
    }
  }
}

TEST(Passes, AnElementThatIsMaskedDoesNotEnterTheLargestRatio) {
  for (const std::size_t n : kLengths) {
    Block block(n);
    for (std::size_t i = 0; i < n; ++i) {
      block.v[i] = i % 2 == 0 ? 0.0F : 0.25F;
      block.f[i] = i % 2 == 0 ? 0.0F : 1.0F;
      block.m[i] = 0;
      block.x[i] = 0;
    }
    Scalars s = scalars();
    s.root_scale = 1;
    s.beta2 = 1;
    s.rest2 = 0;
    const Partial masked = passes().back().kernel(Pass::kLambFrozen, true)(s, block.arrays(), n);
    const Partial plain = passes().back().kernel(Pass::kLambFrozen, false)(s, block.arrays(), n);
    EXPECT_NEAR(masked.largest, n < 2 ? 0 : 0.5, 1e-6) << n;
    EXPECT_EQ(plain.largest, n == 0 ? 0 : 1) << n;
  }
}

TEST(Types, AreWidenedAndNarrowedAsTheCodecDoes) {
  for (const Passes& implementation : passes()) {
    for (const std::size_t n : kLengths) {
      std::vector<float> wide(n), back(n);
      std::vector<std::uint16_t> narrow(n);
      Random random(3);
      for (float& value : wide) value = random.unit() * 100;
      for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
        implementation.narrow(type, wide.data(), n, narrow.data());
        implementation.widen(type, narrow.data(), n, back.data());
        for (std::size_t i = 0; i < n; ++i) {
          const bool half = type == DataType::kFloat16;
          ASSERT_EQ(narrow[i], half ? codec::float_to_half(wide[i]) : codec::float_to_bfloat16(wide[i]));
          ASSERT_EQ(back[i], half ? codec::half_to_float(narrow[i]) : codec::bfloat16_to_float(narrow[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace onebit::optimizer
