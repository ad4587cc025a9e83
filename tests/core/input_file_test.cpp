#include "core/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace hebb {
namespace {

fs::path pipe_in(const TempFolder& folder) {
  const fs::path path = folder / "pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  return path;
}

/// Opens the pipe for writing as soon as somebody reads, and closes it behind the pieces.
std::thread writer_of(const fs::path& path, const std::vector<std::string>& pieces) {
  return std::thread([=] {
    const Descriptor pipe(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    for (const std::string& piece : pieces) {
      ::usleep(30000);  // the reader is likely to wait
      write_all(pipe, path, piece);
    }
  });
}

}  // namespace

FOLDER_TEST("a named pipe is read as a file is, from its first writer to its last", "[fast]") {
  const fs::path path = pipe_in(folder);
  for (const std::vector<std::string>& pieces : {std::vector<std::string>{"one ", "two"}, {}}) {
    std::thread writer = writer_of(path, pieces);
    CHECK(read_file(path) == (pieces.empty() ? "" : "one two"));
    writer.join();
  }
}

FOLDER_TEST("a pipe that nobody writes to, a device and a folder are errors", "[fast]") {
  const fs::path path = pipe_in(folder);
  char byte = 0;
  InputFile pipe(path, 0.01);
  CHECK(pipe.problem().empty());
  CHECK(pipe.read(&byte, 1) == -1);
  CHECK(pipe.problem() == "nobody has opened the pipe for writing within 0.01 s");
  CHECK(thrown<DataError>([] { read_file("/dev/zero"); }) == "/dev/zero: found a device, expected a file or a pipe");
  CHECK(read_file("/dev/null").empty());
  CHECK(thrown<DataError>([&] { read_file(folder.path()); }).ends_with(": cannot read: Is a directory"));
  CHECK(thrown<MissingFileError>([&] {
          read_file(folder / "none");
        }).ends_with("none: cannot open: No such file or directory"));
  CHECK(thrown<DataError>([&] { MappedFile{path}; }) == path.string() + ": expected a regular file");  // at once
}

}  // namespace hebb
