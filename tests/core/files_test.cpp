#include "core/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

std::vector<std::string> names(const std::vector<fs::path>& paths) {
  std::vector<std::string> out;
  for (const fs::path& path : paths) { out.push_back(path.filename().string()); }
  return out;
}

}  // namespace

FOLDER_TEST("read_file returns every byte and names the path when it cannot", "[fast]") {
  const std::string bytes("a\0b\n\xFF", 5);
  CHECK(read_file(folder.write("x.bin", bytes)) == bytes);
  CHECK(read_file(folder.write("empty", "")).empty());
  CHECK_FALSE(read_file("/proc/self/status").empty());  // size unknown beforehand
  CHECK_THROWS_AS(read_file(folder / "none"), DataError);
  CHECK_THROWS_AS(read_file(folder / "none", ExitCode::kUsage), ConfigError);
  CHECK_THROWS_AS(read_file(folder / "none", ExitCode::kCheckpoint), CheckpointError);
  CHECK_THROWS_WITH(read_file(folder / "none"),
                    (folder / "none").string() + ": cannot open: No such file or directory");
  CHECK_THROWS_WITH(read_file(folder.path()), folder.path().string() + ": cannot read: Is a directory");
}

FOLDER_TEST("write_file_atomic replaces the file and leaves no temporary", "[fast]") {
  write_file_atomic(folder / "a.json", "first");
  write_file_atomic(folder / "a.json", "second");
  CHECK(read_file(folder / "a.json") == "second");
  CHECK(names(expand_paths(folder.path().string())) == std::vector<std::string>{"a.json"});
}

FOLDER_TEST("write_file_atomic keeps the folder clean when it fails", "[fast]") {
  folder.write("sub/inner", "x");
  CHECK_THROWS_AS(write_file_atomic(folder / "sub", "x"), CheckpointError);
  CHECK_THROWS_WITH(write_file_atomic(folder / "sub", "x"), Contains("/sub: cannot replace: "));
  CHECK_THROWS_WITH(write_file_atomic(folder / "none" / "a", "x"), Contains("cannot create: No such file"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

FOLDER_TEST("MappedFile shows the bytes of a file, moves, and accepts an empty file", "[fast]") {
  MappedFile map(folder.write("x.bin", "hello"));
  MappedFile moved(std::move(map));
  REQUIRE(moved.size() == 5);
  CHECK(std::string(reinterpret_cast<const char*>(moved.data()), 5) == "hello");
  moved = MappedFile(folder.write("empty", ""));
  CHECK(moved.size() == 0);
  CHECK(moved.path() == folder / "empty");
  CHECK_THROWS_WITH(MappedFile(folder.path()), Contains("found a folder, expected a file"));
  CHECK_THROWS_WITH(MappedFile("/dev/null"), "/dev/null: expected a regular file");
  CHECK_THROWS_AS(MappedFile(folder / "none", ExitCode::kCheckpoint), CheckpointError);
}

FOLDER_TEST("FileWriter writes small and large pieces in order", "[fast]") {
  const std::string large(3'000'001, 'x');
  FileWriter writer(folder / "out");
  writer.write("ab", 2);
  writer.write(large.data(), large.size());
  writer.write("c", 1);
  CHECK(writer.written() == large.size() + 3);
  writer.close();
  CHECK(read_file(folder / "out") == "ab" + large + "c");
}

TEST_CASE("a full disk and an absent folder are checkpoint errors", "[fast]") {
  FileWriter writer("/dev/full");
  writer.write("x", 1);
  CHECK_THROWS_AS(writer.close(), CheckpointError);
  FileWriter other("/dev/full");
  other.write("x", 1);
  CHECK_THROWS_WITH(other.close(), "/dev/full: cannot write: No space left on device");
  CHECK_THROWS_WITH(FileWriter("/nonexistent/x"), "/nonexistent/x: cannot create: No such file or directory");
  CHECK_THROWS_WITH(fsync_directory("/nonexistent"), "/nonexistent: cannot open the folder: No such file or directory");
}

FOLDER_TEST("a device is written to, not replaced", "[fast]") {
  fs::create_symlink("/dev/null", folder / "null");  // a plain file in its place would replace this link alone
  write_file_atomic(folder / "null", "text");
  CHECK(fs::is_symlink(folder / "null"));
}
