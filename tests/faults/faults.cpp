// Preloaded into hebb by tests (tests/train/faults.h): of the calls that change files below a folder the n-th, and the
// process in front of it, get a signal.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_this_rank() {
  const char *wanted = setting("FAULT_RANK"), *own = setting("OMPI_COMM_WORLD_RANK");
  return *wanted == 0 || std::strcmp(wanted, own) == 0;
}

void count(const char* path) {
  static std::atomic<long> calls{0};
  const char* folder = setting("STOP_AT_FOLDER");
  if (*folder == 0 || std::strstr(path, folder) == nullptr || !is_this_rank()) { return; }
  if (++calls == std::atol(setting("STOP_AT_CALL"))) { ::raise(std::atoi(setting("STOP_AT_SIGNAL"))); }
}

void count(int fd) {
  char link[32], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  count(path);
}

template <class F> F* next(const char* name) { return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) != 0) { count(path); }
  static auto* const real = next<int(const char*, int, ...)>("open");
  return real(path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  count(fd);
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return real(fd, bytes, size);
}

int fsync(int fd) {
  count(fd);
  static auto* const real = next<int(int)>("fsync");
  return real(fd);
}

int rename(const char* from, const char* to) noexcept {
  count(to);
  static auto* const real = next<int(const char*, const char*)>("rename");
  return real(from, to);
}

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  const char* most = setting("REFUSE_BYTES");
  if (*most != 0 && fd < 0 && size >= std::strtoull(most, nullptr, 10) && is_this_rank()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  static auto* const real = next<void*(void*, size_t, int, int, int, off_t)>("mmap");
  return real(address, size, protection, flags, fd, offset);
}

int mkdir(const char* path, mode_t mode) noexcept {
  count(path);
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  return real(path, mode);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  count(folder);
  static auto* const real = next<int(int, const char*, int)>("unlinkat");
  return real(folder, path, flags);
}
}
