#include "data/text/byte_source.h"

#include "core/error.h"
#include "core/random.h"
#include "tests/data/compress.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

std::string read_all(const fs::path& path, size_t step = 1000) {
  const auto source = ByteSource::open(path);
  std::string text, block(step, '\0');
  while (const size_t got = source->read(block.data(), block.size())) { text.append(block, 0, got); }
  CHECK(source->file_offset() == fs::file_size(path));
  return text;
}

/// Compresses badly, so that streams span several blocks.
std::string noise(size_t size) {
  Rng rng(1, "noise");
  std::string text(size, '\0');
  for (char& c : text) { c = static_cast<char>(rng.u32()); }
  return text;
}

std::string failure_of(const fs::path& path) {
  return thrown<DataError>([&] { read_all(path); });
}

}  // namespace

FOLDER_TEST("plain files of any length are read as they are", "[fast]") {
  for (const std::string& text :
       {std::string(), std::string("a"), std::string("\x1F"), std::string("abcde"), noise(600'001)}) {
    CHECK(read_all(folder.write("f", text)) == text);
  }
  CHECK_FALSE(ByteSource::open(folder / "f")->is_compressed());
}

FOLDER_TEST("a missing file is a data error with the system's reason", "[fast]") {
  CHECK(failure_of(folder / "none") == (folder / "none").string() + ": cannot open: No such file or directory");
}

#if HEBB_HAVE_ZLIB
FOLDER_TEST("gzip is recognised by its first bytes, with several members and zero padding", "[fast]") {
  const std::string a = noise(700'003), b = "second";
  CHECK(read_all(folder.write("plain.txt", gzip(a))) == a);
  CHECK(read_all(folder.write("f", gzip(a) + gzip("") + gzip(b))) == a + b);
  CHECK(read_all(folder.write("f", gzip(b) + std::string(5000, '\0'))) == b);
  CHECK(read_all(folder.write("f", gzip(a)), 7'000'000) == a);
  CHECK(read_all(folder.write("f", gzip("one byte at a time")), 1) == "one byte at a time");
}

FOLDER_TEST("gzip streams that are cut off or damaged are errors with file and offset", "[fast]") {
  const std::string whole = gzip(noise(700'003));
  for (const size_t size : {size_t{2}, size_t{9}, size_t{300'000}, whole.size() - 8, whole.size() - 1}) {
    const fs::path path = folder.write("f", whole.substr(0, size));
    CHECK(failure_of(path) ==
          path.string() + ": byte " + std::to_string(size) +
              ": gzip stream is cut off (found the end of the file, expected more compressed data)");
  }
  std::string damaged = whole;
  damaged[whole.size() - 6] ^= 1;  // CRC
  fs::path path = folder.write("f", damaged);
  CHECK_THAT(failure_of(path), Contains(": gzip stream is damaged: incorrect data check"));
  path = folder.write("f", gzip("x") + "junk");
  CHECK(failure_of(path) == path.string() +
                                ": byte 21: unknown bytes after a gzip stream (found 6A 75 6E 6B, "
                                "expected another gzip stream or the end)");
}
#endif

#if HEBB_HAVE_ZSTD
FOLDER_TEST("zstd is recognised by its first bytes, with several frames, skippable frames and long windows", "[fast]") {
  const std::string a = noise(700'003), b = "second";
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  CHECK(read_all(folder.write("plain.txt", zstd(a))) == a);
  CHECK(read_all(folder.write("f", zstd(a) + zstd("") + skippable + zstd(b))) == a + b);
  CHECK(read_all(folder.write("f", skippable + zstd(b))) == b);
  CHECK(read_all(folder.write("f", zstd(b, 27))) == b);
  CHECK(read_all(folder.write("f", zstd("one byte at a time")), 1) == "one byte at a time");
}

FOLDER_TEST("zstd streams that are cut off or damaged are errors with file and offset", "[fast]") {
  const std::string whole = zstd(noise(700'003));
  for (const size_t size : {size_t{4}, size_t{300'000}, whole.size() - 1}) {
    const fs::path path = folder.write("f", whole.substr(0, size));
    CHECK(failure_of(path) ==
          path.string() + ": byte " + std::to_string(size) +
              ": zstd stream is cut off (found the end of the file, expected more compressed data)");
  }
  std::string damaged = whole;
  damaged[whole.size() - 1] ^= 1;  // checksum
  CHECK_THAT(failure_of(folder.write("f", damaged)), Contains(": zstd stream is damaged: "));
  CHECK_THAT(failure_of(folder.write("f", zstd("x") + "junk")), Contains(": zstd stream is damaged: "));
  CHECK_THAT(failure_of(folder.write("f", zstd("x", 28))), Contains(": zstd stream is damaged: "));
}
#endif
