// Preloaded into hebb by tests (tests/train/faults.h, tests/faults/*.py): calls that change files below a folder are
// counted, one of them fails, or gets a signal in front of it, and all of them go into a journal. What it does is said
// by variables of the environment:
//   FAULT_FOLDER    calls on paths that hold this text count
//   FAULT_COUNTER   file of 8 bytes: the number of calls so far, shared by all processes; without it each process
//   counts its own FAULT_CALL      the number of the call that has the fault, from 1 FAULT_SIGNAL    the signal that
//   comes in front of it FAULT_ERRNO     or: the error that it ends with. Removing needs no space: it never ends with
//   ENOSPC FAULT_SHORT     or: a write of more than one byte writes half of them FAULT_STICKS    all later calls have
//   the error, too FAULT_JOURNAL   file of what was done: "OP\tINODE\tOFFSET\tBYTES\tPATH\tTO\n", and the bytes of a
//   write FAULT_RANK      only this rank has faults REFUSE_BYTES    there are no pieces of memory of so many bytes or
//   more
// Where a folder is given, fsync does not wait for the disk: these tests cut no power.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

using std::string;

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_set(const char* name) { return *setting(name) != 0; }

template <class F> F* next(const char* name) { return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name)); }

bool is_this_rank() {
  const char *wanted = setting("FAULT_RANK"), *own = setting("OMPI_COMM_WORLD_RANK");
  return *wanted == 0 || std::strcmp(wanted, own) == 0;
}

string path_of(int fd) {
  char link[32], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof path);
  return string(path, static_cast<size_t>(n > 0 ? n : 0));
}

string absolute(const char* path, int folder = AT_FDCWD) {
  if (*path == '/') { return path; }
  char here[4096];
  return (folder != AT_FDCWD ? path_of(folder) : ::getcwd(here, sizeof here) != nullptr ? here : "") + "/" + path;
}

std::atomic<long>& counter() {
  static std::atomic<long> own{0};
  static std::atomic<long>* const shared = [] {
    const int fd = is_set("FAULT_COUNTER") ? ::open(setting("FAULT_COUNTER"), O_RDWR | O_CLOEXEC) : -1;
    void* map = fd >= 0 ? ::mmap(nullptr, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    return map != MAP_FAILED ? static_cast<std::atomic<long>*>(map) : &own;
  }();
  return *shared;
}

int journal() {
  static const int file = static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, setting("FAULT_JOURNAL"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  return file;
}

/// One call. It holds a mutex and a lock of the journal, which has the order of the calls of all threads and processes.
class Call {
 public:
  explicit Call(const string& path, bool takes_space = true) : path_(path) {
    const char* folder = setting("FAULT_FOLDER");
    is_counted_ = *folder != 0 && path.find(folder) != string::npos;
    if (!is_counted_) { return; }
    if (is_set("FAULT_JOURNAL")) {
      lock_ = std::unique_lock(mutex());
      while (::flock(journal(), LOCK_EX) != 0 && errno == EINTR) {}
    }
    if (!is_this_rank()) { return; }
    const long number = ++counter(), wanted = std::atol(setting("FAULT_CALL"));
    has_fault_ = number == wanted || (is_set("FAULT_STICKS") && wanted > 0 && number > wanted);
    if (has_fault_ && is_set("FAULT_SIGNAL")) { ::raise(std::atoi(setting("FAULT_SIGNAL"))); }
    error_ = has_fault_ ? std::atoi(setting("FAULT_ERRNO")) : 0;
    if (error_ == ENOSPC && !takes_space) { error_ = 0; }
  }
  ~Call() {
    const int error = errno;
    if (lock_.owns_lock()) { ::flock(journal(), LOCK_UN); }
    errno = error;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  bool is_counted() const { return is_counted_; }
  /// Whether the call ends with an error, which is in errno then.
  bool fails() const {
    if (error_ != 0) { errno = error_; }
    return error_ != 0;
  }
  size_t bytes(size_t size) const { return has_fault_ && is_set("FAULT_SHORT") && size > 1 ? size / 2 : size; }

  /// Of a call that did what it should. Returns its result.
  template <class R>
  R note(R result, const char* op, int fd, off_t offset = 0, const void* data = nullptr, const string& to = "") {
    if (!is_counted_ || !is_set("FAULT_JOURNAL") || result < 0) { return result; }
    const int error = errno;
    struct stat file {};
    if (fd >= 0) { ::fstat(fd, &file); }
    const size_t size = data != nullptr ? static_cast<size_t>(result) : 0;
    const string line = string(op) + "\t" + std::to_string(file.st_ino) + "\t" + std::to_string(offset) + "\t" +
                        std::to_string(size) + "\t" + path_ + "\t" + to + "\n";
    const iovec parts[] = {{const_cast<char*>(line.data()), line.size()}, {const_cast<void*>(data), size}};
    if (::syscall(SYS_writev, journal(), parts, 2) != static_cast<long>(line.size() + size)) { std::abort(); }
    errno = error;
    return result;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  string path_;
  bool is_counted_ = false, has_fault_ = false;
  int error_ = 0;
  std::unique_lock<std::mutex> lock_;
};

int open_below(int folder, const char* path, int flags, mode_t mode) {
  const auto open = [&] { return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode)); };
  if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) == 0) { return open(); }
  Call call(absolute(path, folder));
  if (call.fails()) { return -1; }
  const int fd = open();
  return call.note(fd, (flags & O_TRUNC) != 0 ? "truncate" : "open", fd);
}

/// A call on a path, or on two.
template <class Do> int change(const char* op, const string& path, bool takes_space, const string& to, Do&& run) {
  Call call(path, takes_space);
  return call.fails() ? -1 : call.note(run(), op, -1, 0, nullptr, to);
}

off_t place(int fd) { return ::lseek(fd, 0, SEEK_CUR); }

int flush(int fd, const char* name) {
  Call call(path_of(fd));
  if (call.fails()) { return -1; }
  return call.note(call.is_counted() ? 0 : next<int(int)>(name)(fd), "sync", fd);
}

std::FILE* open_stream(const char* path, const char* mode, const char* name) {
  auto* const real = next<std::FILE*(const char*, const char*)>(name);
  if (std::strpbrk(mode, "wa+") == nullptr) { return real(path, mode); }
  Call call(absolute(path));
  if (call.fails()) { return nullptr; }
  std::FILE* file = real(path, mode);
  if (file != nullptr) { call.note(0, *mode == 'w' ? "truncate" : "open", ::fileno(file)); }
  return file;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open_below(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open_below(folder, path, flags, mode);
}

std::FILE* fopen(const char* path, const char* mode) { return open_stream(path, mode, "fopen"); }
std::FILE* fopen64(const char* path, const char* mode) { return open_stream(path, mode, "fopen64"); }

ssize_t write(int fd, const void* bytes, size_t size) {
  Call call(path_of(fd));
  if (call.fails()) { return -1; }
  const ssize_t done = ::syscall(SYS_write, fd, bytes, call.bytes(size));
  return call.note(done, "write", fd, call.is_counted() ? place(fd) - done : 0, bytes);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  string bytes;
  for (int i = 0; i < count; ++i) { bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len); }
  return write(fd, bytes.data(), bytes.size());
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  Call call(path_of(fd));
  if (call.fails()) { return -1; }
  return call.note(static_cast<ssize_t>(::syscall(SYS_pwrite64, fd, bytes, call.bytes(size), offset)), "write", fd,
                   offset, bytes);
}

int ftruncate(int fd, off_t size) noexcept {
  Call call(path_of(fd));
  return call.fails() ? -1 : call.note(static_cast<int>(::syscall(SYS_ftruncate, fd, size)), "resize", fd, size);
}

int truncate(const char* path, off_t size) noexcept {
  Call call(absolute(path));
  return call.fails() ? -1 : call.note(static_cast<int>(::syscall(SYS_truncate, path, size)), "resize", -1, size);
}

int fsync(int fd) { return flush(fd, "fsync"); }
int fdatasync(int fd) { return flush(fd, "fdatasync"); }

int rename(const char* from, const char* to) noexcept {
  return change("rename", absolute(from), true, absolute(to),
                [&] { return next<int(const char*, const char*)>("rename")(from, to); });
}

int link(const char* from, const char* to) noexcept {
  return change("link", absolute(from), true, absolute(to),
                [&] { return next<int(const char*, const char*)>("link")(from, to); });
}

int symlink(const char* target, const char* path) noexcept {
  return change("symlink", absolute(path), true, target,
                [&] { return next<int(const char*, const char*)>("symlink")(target, path); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  return change("mkdir", absolute(path), true, "", [&] { return next<int(const char*, mode_t)>("mkdir")(path, mode); });
}

int unlink(const char* path) noexcept {
  return change("remove", absolute(path), false, "", [&] { return next<int(const char*)>("unlink")(path); });
}

int rmdir(const char* path) noexcept {
  return change("remove", absolute(path), false, "", [&] { return next<int(const char*)>("rmdir")(path); });
}

int remove(const char* path) noexcept {
  return change("remove", absolute(path), false, "", [&] { return next<int(const char*)>("remove")(path); });
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return change("remove", absolute(path, folder), false, "",
                [&] { return next<int(int, const char*, int)>("unlinkat")(folder, path, flags); });
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
}
