// Little-endian fields in messages: a writer, and a reader that believes nothing.
//
// A read beyond the end gives zeros and empty spans and makes `complete` false; nothing is ever allocated
// from an announced length that is not there. Value types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onebit::bootstrap {

class Writer {
 public:
  void u8(std::uint8_t value) { number(value, 1); }
  void u16(std::uint16_t value) { number(value, 2); }
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void bytes(std::span<const std::byte> content) {
    data_.insert(data_.end(), content.begin(), content.end());
  }
  /// With its length (up to `most` bytes of it, at most 65535) before it.
  void text(std::string_view content, std::size_t most) {
    content = content.substr(0, std::min<std::size_t>(most, 65535));
    u16(static_cast<std::uint16_t>(content.size()));
    bytes(std::as_bytes(std::span(content)));
  }
  void resize(std::size_t size) { data_.resize(size); }
  const std::vector<std::byte>& data() const { return data_; }
  std::vector<std::byte> take() { return std::move(data_); }

 private:
  void number(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) data_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xFF));
  }
  std::vector<std::byte> data_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> data) : left_(data) {}
  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::span<const std::byte> bytes(std::size_t size) {
    if (size > left_.size()) {
      intact_ = false;
      left_ = {};
      return {};
    }
    const auto found = left_.first(size);
    left_ = left_.subspan(size);
    return found;
  }
  /// For messages to people: control characters become '?'.
  std::string text(std::size_t most) {
    const std::size_t size = u16();
    if (size > most) intact_ = false;
    std::string found;
    for (const std::byte byte : bytes(size > most ? 0 : size)) {
      const auto character = std::to_integer<unsigned char>(byte);
      const bool control = (character < 0x20 && character != '\n') || character == 0x7F;
      found += control ? '?' : static_cast<char>(character);
    }
    return found;
  }
  /// Every read was within the data.
  bool intact() const { return intact_; }
  /// And nothing is left.
  bool complete() const { return intact_ && left_.empty(); }

 private:
  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    const auto found = bytes(size);
    for (std::size_t i = 0; i < found.size(); ++i)
      value |= std::to_integer<std::uint64_t>(found[i]) << (8 * i);
    return value;
  }
  std::span<const std::byte> left_;
  bool intact_ = true;
};

}  // namespace onebit::bootstrap
