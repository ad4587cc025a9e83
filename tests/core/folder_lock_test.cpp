#include "core/folder_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "core/host.h"
#include "core/sign_of_life.h"
#include "tests/left_lock.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

FOLDER_TEST("an error of a lock is of the wanted kind and calls the folder by its name") {
  const FolderLock lock(folder.path());
  CHECK_THAT(thrown<DataError>([&] {
               const FolderLock second(folder.path(), {"data set", ExitCode::kData});
             }),
             Contains("the data set is in use by process " + std::to_string(::getpid()) + " on "));
  CHECK_THAT(thrown<CheckpointError>([&] { const FolderLock second(folder.path()); }),
             Contains("the run folder is in use by process "));
}

FOLDER_TEST("a process that has just begun is named as soon as it has written its lock") {
  const Descriptor held(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::flock(held.fd(), LOCK_EX) == 0);
  std::thread writer([&] {
    ::usleep(50000);  // the other start is likely to wait
    write_all(held, folder / "lock", host_name() + " 12345 0 - 0\n");
  });
  std::string said;
  for (bool is_named = false; !is_named;) {  // it waits ten seconds; the writer may have got no processor in them
    const auto begin = std::chrono::steady_clock::now();
    said = thrown<CheckpointError>([&] { const FolderLock second(folder.path()); });
    is_named = said.find("a process that does not write its lock") == std::string::npos;
    CHECK((is_named || std::chrono::steady_clock::now() - begin >= std::chrono::seconds(10)));
  }
  CHECK_THAT(said, Contains("the run folder is in use by process 12345 on " + host_name()));
  writer.join();
}

FOLDER_TEST("a lock creates its folder and says which one was the first that was missing") {
  {
    const FolderLock lock(folder / "a/b/c");
    CHECK(lock.created() == folder / "a");
    CHECK(fs::exists(folder / "a/b/c/lock"));
  }
  CHECK(FolderLock(folder / "a/b/c").created().empty());
  CHECK_FALSE(fs::exists(folder / "a/b/c/lock"));
  fs::create_directory_symlink(folder / "nowhere/at/all", folder / "link");
  CHECK_THROWS_AS(FolderLock(folder / "link"), CheckpointError);
}

FOLDER_TEST("the lock of a process that has ended is taken over although nobody has asked for its exit code") {
  const pid_t child = leave_lock(folder.path());
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);  // a zombie from here on
  {
    const FolderLock lock(folder.path());
    CHECK(lock.taken_over().find("process " + std::to_string(child)) == 0);
  }
  ::waitpid(child, nullptr, 0);
}

FOLDER_TEST("nothing of a longer lock stays in the one that takes it over") {
  folder.write("lock", host_name() + " 1 never " + std::string(100, 'j') + " 0\n");
  const FolderLock lock(folder.path());
  CHECK(lock.taken_over() == "process 1 on " + host_name());
  const std::string text = read_file(folder / "lock");
  CHECK(text.find('\n') == text.size() - 1);
}

FOLDER_TEST("the lock of another host is taken over if nobody touches it, and said so") {
  folder.write("lock", "no-such-host 1 2 - 0\n");
  std::string said;
  const auto begin = std::chrono::steady_clock::now();
  const int64_t signs = signs_of_life();
  FolderLock lock(folder.path(), {.watch_seconds = 0.4}, [&](const std::string& text) { said = text; });
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(400));
  CHECK(signs_of_life() > signs);  // ranks that wait for this one know why
  CHECK_THAT(said, Contains("in use by process 1 on no-such-host") && Contains("for 0.4 s"));
  CHECK(lock.taken_over() == "process 1 on no-such-host");
  CHECK_NOTHROW(lock.require_own());
  CHECK_THAT(read_file(folder / "lock"), Contains(" " + std::to_string(::getpid()) + " "));
}

FOLDER_TEST("the lock of another host that is touched is not taken over") {
  const std::string holder = "no-such-host 1 2 - 0\n";
  folder.write("lock", holder);
  std::atomic<bool> is_over{false};
  std::thread toucher([&] {
    while (!is_over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::fstream(folder / "lock", std::ios::in | std::ios::out) << holder;
    }
  });
  CHECK_THROWS_WITH(FolderLock(folder.path(), {.watch_seconds = 600}),
                    Contains("in use by process 1 on no-such-host, which touches the lock"));
  is_over = true;
  toucher.join();
  CHECK(read_file(folder / "lock") == holder);
}

FOLDER_TEST("the holder touches its lock") {
  const FolderLock lock(folder.path(), {.touch_seconds = 0.05});
  const std::string text = read_file(folder / "lock");
  for (int i = 0; i < 3; ++i) {
    const auto before = fs::last_write_time(folder / "lock");
    for (int waited = 0; fs::last_write_time(folder / "lock") == before; ++waited) {
      REQUIRE(waited < 60000);  // ten minutes
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  CHECK(read_file(folder / "lock") == text);
}

FOLDER_TEST("a requeued job takes its own lock over at once") {
  const auto job = [](const char* restarts) {
    ::setenv("SLURM_JOB_ID", "77", 1);
    restarts != nullptr ? ::setenv("SLURM_RESTART_COUNT", restarts, 1) : ::unsetenv("SLURM_RESTART_COUNT");
  };
  job(nullptr);
  {
    const FolderLock lock(folder.path());
    CHECK_THAT(read_file(folder / "lock"), Catch::EndsWith(" 77 0\n"));
  }
  const auto is_watched = [&](const std::string& holder) {
    folder.write("lock", holder);
    bool is_said = false;
    const FolderLock lock(folder.path(), {.watch_seconds = 0.1}, [&](const std::string&) { is_said = true; });
    return is_said;
  };
  job("2");
  CHECK_FALSE(is_watched("no-such-host 1 2 77 0\n"));
  CHECK_FALSE(is_watched("no-such-host 1 2 77 1\n"));
  CHECK(is_watched("no-such-host 1 2 77 2\n"));  // another step of this job
  CHECK(is_watched("no-such-host 1 2 78 1\n"));
  CHECK(is_watched("no-such-host 1 2 - 0\n"));
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("SLURM_RESTART_COUNT");
}

FOLDER_TEST("a lock that somebody has removed or emptied is taken anew, which is said once") {
  FolderLock lock(folder.path());
  const std::string text = read_file(folder / "lock");
  CHECK_FALSE(lock.require_own());
  fs::remove(folder / "lock");
  CHECK_FALSE(lock.is_own());
  CHECK(lock.require_own());
  CHECK_FALSE(lock.require_own());
  CHECK(read_file(folder / "lock") == text);
  fs::resize_file(folder / "lock", 0);
  CHECK(lock.require_own());
  CHECK(read_file(folder / "lock") == text);
  fs::remove_all(folder.path());
  CHECK(lock.require_own());
  CHECK_THROWS_AS(FolderLock(folder.path()), CheckpointError);
}

FOLDER_TEST("the thread that touches a lock takes it anew, too") {
  FolderLock lock(folder.path(), {.touch_seconds = 0.01});
  fs::remove(folder / "lock");
  while (!fs::exists(folder / "lock")) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  CHECK(lock.require_own());
}

FOLDER_TEST("a removed lock that another process has taken is lost") {
  FolderLock lock(folder.path());
  fs::remove(folder / "lock");
  int taken[2], over[2];
  REQUIRE((::pipe(taken) == 0 && ::pipe(over) == 0));
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(over[1]);
    {
      const FolderLock own(folder.path());
      if (::write(taken[1], &byte, 1) == 1) { ::read(over[0], &byte, 1) == 0 ? void() : std::abort(); }
    }
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(taken[0], &byte, 1) == 1);
  CHECK_THAT(thrown<CheckpointError>([&] { lock.require_own(); }),
             Contains("process " + std::to_string(child) + " on ") &&
                 Contains("has taken the run folder over; nothing is saved (end that process"));
  for (const int fd : {taken[0], taken[1], over[0], over[1]}) { ::close(fd); }
  ::waitpid(child, nullptr, 0);
}

FOLDER_TEST("a signal removes files while the lock is that of the process, and only then") {
  const bool is_taken_over = GENERATE(false, true);
  folder.write("run/file", "x");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    const FolderLock lock(folder / "run");
    const auto cleanup = lock.remove_at_signals({folder / "run/file", folder / "run/lock"});
    if (is_taken_over) {
      fs::remove(folder / "run/lock");
      folder.write("run/lock", "no-such-host 1 2 - 0\n");
    }
    ::raise(SIGINT);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WTERMSIG(status) == SIGINT);
  CHECK(fs::exists(folder / "run/file") == is_taken_over);
  CHECK(fs::exists(folder / "run/lock") == is_taken_over);
}
