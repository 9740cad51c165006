// UCX's library as it is found, when it is chosen, and the form of what its ends say to each other.
#include "transport/ucx/ucx_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "transport/factory.h"
#include "transport/ucx/ucx_wire.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using ::testing::HasSubstr;

TEST(UcxLibrary, OneThatIsMissingIsAnErrorThatSaysWhatToInstall) {
  const auto opened = open_ucx_library("libucp-of-nobody.so.0");
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), AllOf(HasSubstr("libucp-of-nobody.so.0"), HasSubstr("libucx0")));
}

TEST(UcxLibrary, OneThatIsTooOldIsAnErrorThatSaysWhichIsNeeded) {
  const auto opened = open_ucx_library(ONEBIT_OLD_UCX);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), AllOf(HasSubstr("is UCX 1.9.2, which is too old"),
                                               HasSubstr("1.13 or newer"), HasSubstr("libucx0")));
}

TEST(UcxLibrary, OneWithoutTheFunctionsIsAnErrorThatNamesOne) {
  const auto opened = open_ucx_library("libm.so.6");
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("libm.so.6 has no ucp_get_version"));
}

TEST(UcxChoice, AutomaticDoesNotTakeItAndANameDoes) {
  Settings settings = test_settings();
  settings.transport = "auto";
  const auto automatic = choose(settings);
  ASSERT_TRUE(automatic.ok());
  EXPECT_NE(automatic->transport, "ucx");
  settings.transport = "ucx";
  const auto named = choose(settings);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named->transport, "ucx");
  settings.transport = "infiniband";
  EXPECT_THAT(choose(settings).status().message(), HasSubstr("auto, verbs, tcp, ucx"));
}

TEST(UcxWire, WhatAPeerSaysComesThroughAndNothingElseDoes) {
  UcxIntroduction introduction;
  introduction.core = 0x1122334455667788;
  introduction.own_worker = 3;
  introduction.peer_worker = 5;
  introduction.token = 77;
  introduction.window = 9;
  introduction.address = pattern(300, 1);
  const auto bytes = encode_ucx_introduction(introduction);
  const auto heard = decode_ucx_introduction(bytes);
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(heard->core, introduction.core);
  EXPECT_EQ(heard->own_worker, 3);
  EXPECT_EQ(heard->peer_worker, 5);
  EXPECT_EQ(heard->token, 77U);
  EXPECT_EQ(heard->window, 9U);
  EXPECT_EQ(heard->address, introduction.address);
  for (std::size_t length = 0; length <= 24; ++length) {
    EXPECT_FALSE(decode_ucx_introduction(std::span(bytes).first(length)).ok()) << length;
  }
  introduction.window = 0;
  EXPECT_FALSE(decode_ucx_introduction(encode_ucx_introduction(introduction)).ok())
      << "no room for a message";
  EXPECT_EQ(*decode_ucx_hello(encode_ucx_hello(12)), 12U);
  EXPECT_FALSE(decode_ucx_hello(std::span(bytes).first(8)).ok());
}

TEST(UcxWire, AMessageOfAnotherSizeThanItSaysIsRefused) {
  std::array<std::byte, kMostUcxHeader> bytes{};
  UcxHeader header;
  EXPECT_NE(decode_ucx(bytes, 0, header), nullptr) << "zeros";
  header.kind = SegmentOf::kFirst;
  header.bytes = 100;
  ASSERT_EQ(encode_ucx(header, bytes), kMostUcxHeader);
  EXPECT_EQ(decode_ucx(bytes, 99, header), nullptr);
  EXPECT_NE(decode_ucx(bytes, 100, header), nullptr) << "that is all of it";
  EXPECT_NE(decode_ucx(bytes, 0, header), nullptr);
  EXPECT_NE(decode_ucx(std::span(bytes).first(32), 99, header), nullptr);
  EXPECT_NE(decode_ucx(std::span(bytes).first(31), 99, header), nullptr);
  header.kind = SegmentOf::kCredits;
  ASSERT_EQ(encode_ucx(header, bytes), 32U);
  EXPECT_EQ(decode_ucx(std::span(bytes).first(32), 0, header), nullptr);
  EXPECT_NE(decode_ucx(std::span(bytes).first(32), 1, header), nullptr);
}

}  // namespace
}  // namespace onebit::transport::test
