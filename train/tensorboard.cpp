#include "train/tensorboard.h"

#include <fmt/core.h>

#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstring>

#include "core/folders.h"
#include "core/hash.h"
#include "core/host.h"

namespace hebb {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they lie in memory");

template <class T> void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) { out.push_back(static_cast<char>(value | 0x80)); }
  out.push_back(static_cast<char>(value));
}

// Protocol buffer fields: key = number << 3 | wire type (0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes).
void put_double(std::string& out, int field, double value) {
  put_varint(out, static_cast<uint64_t>(field << 3 | 1));
  put(out, value);
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_varint(out, static_cast<uint64_t>(field << 3 | 2));
  put_varint(out, bytes.size());
  out.append(bytes);
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

fs::path new_file(const fs::path& folder) {
  create_folders(folder);
  return folder /
         fmt::format("events.out.tfevents.{:d}.{}.{:d}", static_cast<int64_t>(wall_seconds()), host_name(), ::getpid());
}

}  // namespace

std::string tensorboard_record(std::string_view data) {
  std::string length, out;
  put(length, static_cast<uint64_t>(data.size()));
  out = length;
  put(out, masked_crc(length));
  out.append(data);
  put(out, masked_crc(data));
  return out;
}

std::string tensorboard_version_event(double wall_seconds) {
  std::string event;
  put_double(event, 1, wall_seconds);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string tensorboard_start_event(double wall_seconds, int64_t step) {
  std::string event, log;
  put_varint(log, 1 << 3 | 0);
  put_varint(log, 1);  // SessionLog.START
  put_double(event, 1, wall_seconds);
  put_varint(event, 2 << 3 | 0);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 7, log);
  return event;
}

std::string tensorboard_scalar_event(double wall_seconds, int64_t step, const Scalars& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_varint(value, 2 << 3 | 5);
    put(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string event;
  put_double(event, 1, wall_seconds);
  put_varint(event, 2 << 3 | 0);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

TensorBoardWriter::TensorBoardWriter(const fs::path& folder, int64_t step) : file_(new_file(folder)) {
  file_.append(tensorboard_record(tensorboard_version_event(wall_seconds())));
  file_.append(tensorboard_record(tensorboard_start_event(wall_seconds(), step + 1)));
}

void TensorBoardWriter::add(int64_t step, const Scalars& values) {
  file_.append(tensorboard_record(tensorboard_scalar_event(wall_seconds(), step, values)));
}

}  // namespace hebb
