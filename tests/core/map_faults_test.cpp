#include "core/map_faults.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/files.h"
#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace hebb {
namespace {

uint8_t read_byte(const uint8_t* at) { return *static_cast<const volatile uint8_t*>(at); }

/// Wait status of a child that does this, with its standard error in `folder`/err.
template <class Act> int status_of(const TempFolder& folder, Act&& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int err = ::open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(err, STDERR_FILENO);
    act();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

/// A map of a file that is cut behind it.
MappedFile cut_map(const fs::path& path, ExitCode code) {
  write_file_atomic(path, std::string(20000, 'x'));
  MappedFile map(path, code);
  REQUIRE(::truncate(path.c_str(), 0) == 0);
  return map;
}

}  // namespace

FOLDER_TEST("a read of a mapped file that was cut is an error with its name", "[fast]") {
  const MappedFile whole(folder.write("whole", "text"));
  const MappedFile map = cut_map(folder / "cut.bin", ExitCode::kData);
  uint8_t byte = 0;
  for (int again = 0; again < 2; ++again) {
    CHECK_THROWS_WITH(read_mapped([&] { byte = read_byte(map.data() + 5000); }),
                      Contains((folder / "cut.bin").string() + ": cannot read the mapped file"));
  }
  read_mapped([&] { byte = read_byte(whole.data()); });
  CHECK(byte == 't');
  CHECK_THROWS_AS(read_mapped([&] {
                    read_mapped([&] { byte = read_byte(whole.data()); });
                    byte = read_byte(map.data() + 5000);
                  }),
                  DataError);
}

FOLDER_TEST("outside of a guarded read the process ends with the file's name and the code of its map", "[fast]") {
  for (const ExitCode code : {ExitCode::kData, ExitCode::kCheckpoint}) {
    MappedFile first = cut_map(folder / "weights.bin", code);
    const MappedFile map = std::move(first);
    const int status = status_of(folder, [&] { read_byte(map.data() + 19999); });
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == static_cast<int>(code));
    CHECK(read_file(folder / "err").starts_with("error: " + (folder / "weights.bin").string() + ": cannot read"));
  }
}

FOLDER_TEST("a SIGBUS that no map has caused ends the process as ever", "[fast]") {
  const MappedFile whole(folder.write("whole", "text"));
  const auto is_killed = [&](int status) {
    if (is_sanitized()) {  // its report, and its exit code
      return !read_file(folder / "err").starts_with("error: ") && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
  };
  CHECK(is_killed(status_of(folder, [&] {
    const int file = ::open((folder / "empty").c_str(), O_RDWR | O_CREAT, 0666);
    read_byte(static_cast<const uint8_t*>(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0)));
  })));
  CHECK(is_killed(status_of(folder, [] { ::kill(::getpid(), SIGBUS); })));
  CHECK(is_killed(status_of(folder, [&] {  // a map that is gone
    const uint8_t* at = nullptr;
    {
      const MappedFile map = cut_map(folder / "gone", ExitCode::kData);
      at = map.data();
    }
    const int file = ::open((folder / "gone").c_str(), O_RDWR);
    ::mmap(const_cast<uint8_t*>(at), 4096, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
    read_byte(at);
  })));
}

}  // namespace hebb
