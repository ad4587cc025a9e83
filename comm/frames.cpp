#include "comm/frames.h"

#include <fmt/core.h>

#include "comm/sha256.h"
#include "core/error.h"

namespace hebb {
namespace {

constexpr size_t kHeader = 4, kSeal = 32;

[[noreturn]] void fail(const std::string& what) { throw CommError("control connection", what); }

const Json& member(const Json& frame, std::string_view key) {
  const Json* value = frame.find(key);
  if (value == nullptr) { fail("a frame without " + std::string(key)); }
  return *value;
}

/// Little-endian.
std::string bytes_of(uint64_t value, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) { bytes += static_cast<char>((value >> (8 * i)) & 0xff); }
  return bytes;
}

std::string seal_of(const std::string& key, uint64_t number, std::string_view text) {
  return hmac_sha256(key, bytes_of(number, 8).append(text));
}

}  // namespace

std::string encode_frame(const Json& frame, const std::string& key, uint64_t number) {
  const std::string text = frame.dump();
  HEBB_ASSERT(text.size() <= kLargestFrame);
  return bytes_of(text.size(), kHeader) + text + (key.empty() ? "" : seal_of(key, number, text));
}

std::optional<Json> FrameReader::next() {
  if (buffer_.size() < kHeader) { return std::nullopt; }
  size_t length = 0;
  for (size_t i = 0; i < kHeader; ++i) { length |= static_cast<size_t>(static_cast<uint8_t>(buffer_[i])) << (8 * i); }
  if (length > limit_) { fail(fmt::format("a frame of {:d} bytes (expected at most {:d})", length, limit_)); }
  const size_t end = kHeader + length + (key_.empty() ? 0 : kSeal);
  if (buffer_.size() < end) { return std::nullopt; }
  const std::string_view text = std::string_view(buffer_).substr(kHeader, length);
  if (!key_.empty() &&
      !equal_secrets(seal_of(key_, number_++, text), std::string_view(buffer_).substr(kHeader + length, kSeal))) {
    fail("a frame with a wrong seal");
  }
  Json frame;
  try {
    frame = parse_json(text, "frame");
  } catch (const Error& error) { fail(error.what()); }
  buffer_.erase(0, end);
  if (!frame.is_object()) { fail("a frame that is no object"); }
  frame_kind(frame);
  return frame;
}

const std::string& frame_text(const Json& frame, std::string_view key) {
  const Json& value = member(frame, key);
  if (!value.is_string()) { fail("a frame whose " + std::string(key) + " is no text"); }
  return value.as_string();
}

int64_t frame_integer(const Json& frame, std::string_view key) {
  const Json& value = member(frame, key);
  if (value.kind() != Json::Kind::integer) { fail("a frame whose " + std::string(key) + " is no integer"); }
  return value.as_int();
}

int64_t frame_integer(const Json& frame, std::string_view key, int64_t lowest, int64_t highest) {
  const int64_t value = frame_integer(frame, key);
  if (value < lowest || value > highest) { fail("a frame whose " + std::string(key) + " is out of range"); }
  return value;
}

int frame_exit_code(const Json& frame) {
  const int64_t code = frame_integer(frame, "code");
  return code >= 1 && code <= 255 ? static_cast<int>(code) : static_cast<int>(ExitCode::kOther);
}

const std::string& frame_kind(const Json& frame) { return frame_text(frame, "kind"); }

}  // namespace hebb
