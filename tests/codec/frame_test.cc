// A frame is opened only when every field is what the reader expects, and an error says which is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "codec/frame.h"

namespace onebit::codec {
namespace {

using testing::HasSubstr;

constexpr std::size_t kElements = 5001;
constexpr Parameters kParameters{2048, Scale::kRms};

std::vector<std::byte> good_frame(std::size_t n = kElements, Parameters parameters = kParameters) {
  std::vector<std::byte> frame(frame_bytes(n, parameters.block));
  write_frame_header(frame.data(), n, parameters);
  return frame;
}

TEST(Frame, HasTheBytesOfTheDocument) {
  std::vector<std::byte> frame = good_frame(0x010203, {1024, Scale::kMean});
  const unsigned char expected[16] = {'1', 'B', 1, 1, 10, 1, 0, 0, 3, 2, 1, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(frame.data(), expected, 16), 0);
  EXPECT_EQ(frame.size(), 16 + 4 * 65 + 0x010203 / 8 + 1);
  frame = good_frame(100, {kWhole, Scale::kRms});
  EXPECT_EQ(frame[4], std::byte{255});
  EXPECT_EQ(frame.size(), 16u + 4 + 13);
}

TEST(Frame, OpensAndGivesItsParts) {
  std::vector<std::byte> frame = good_frame();
  const auto opened = open_frame(frame, kElements, kParameters);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->scales, frame_scales(frame.data()));
  EXPECT_EQ(opened->bits, frame_bits(frame.data(), kElements, kParameters.block));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(opened->bits) - frame.data(), 16 + 3 * 4);
}

TEST(Frame, OfNoElementsIsABareHeader) {
  const std::vector<std::byte> frame = good_frame(0);
  EXPECT_EQ(frame.size(), kFrameHeaderBytes);
  EXPECT_TRUE(open_frame(frame, 0, kParameters).ok());
}

struct Corruption {
  std::size_t at;
  unsigned value;
  const char* message;
};

class CorruptFrame : public testing::TestWithParam<Corruption> {};

INSTANTIATE_TEST_SUITE_P(
    Codec, CorruptFrame,
    testing::Values(Corruption{0, 'X', "magic"}, Corruption{1, 'X', "magic"},
                    Corruption{2, 2, "version is 2, expected 1"},
                    Corruption{3, 7, "codec id is 7, expected 1"}, Corruption{4, 12, "is 12, expected 11"},
                    Corruption{4, 255, "is 255, expected 11"},
                    Corruption{5, 1, "scale rule is 1, expected 0"}, Corruption{6, 1, "byte 6"},
                    Corruption{7, 1, "byte 6"}, Corruption{8, 0, "elements is 4864, expected 5001"},
                    Corruption{11, 1, "elements"}, Corruption{12, 9, "byte 12 is 9"},
                    Corruption{15, 1, "byte 12"}, Corruption{16 + 12 + 625, 0x02, "unused bits"}));

TEST_P(CorruptFrame, IsADataErrorThatNamesTheField) {
  std::vector<std::byte> frame = good_frame();
  frame[GetParam().at] = static_cast<std::byte>(GetParam().value);
  const auto opened = open_frame(frame, kElements, kParameters);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kDataError);
  EXPECT_THAT(opened.status().message(), HasSubstr(GetParam().message));
}

TEST(Frame, TruncatedAnywhereOrTooLongIsADataError) {
  const std::vector<std::byte> frame = good_frame();
  for (std::size_t length = 0; length < frame.size(); ++length) {
    const auto opened = open_frame(std::span(frame).first(length), kElements, kParameters);
    ASSERT_FALSE(opened.ok()) << length;
    ASSERT_EQ(opened.status().code(), Code::kDataError);
  }
  std::vector<std::byte> longer = frame;
  longer.push_back(std::byte{0});
  EXPECT_THAT(open_frame(longer, kElements, kParameters).status().message(), HasSubstr("length"));
}

TEST(Frame, OfOtherParametersThanTheReadersIsADataError) {
  const std::vector<std::byte> frame = good_frame();
  EXPECT_FALSE(open_frame(frame, kElements, {kWhole, Scale::kRms}).ok());
  EXPECT_FALSE(open_frame(frame, kElements, {2048, Scale::kMean}).ok());
  EXPECT_FALSE(open_frame(frame, kElements + 1, kParameters).ok());
}

TEST(Frame, OfMoreElementsThanItsFieldHoldsIsAnInvalidArgument) {
  EXPECT_EQ(open_frame(good_frame(), std::size_t{1} << 32, kParameters).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace onebit::codec
