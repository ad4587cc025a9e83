#include "core/map_faults.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace hebb {
namespace {

constexpr const char* kProblem =
    "cannot read the mapped file: it was cut after it was opened, or its disk has an error";

// The handler walks the list while other threads change it: what was ever in it stays, and is used again.
struct Map {
  std::atomic<const uint8_t*> begin{nullptr};
  std::atomic<uint64_t> size{0};  // 0: free
  std::atomic<const char*> path{nullptr};
  std::atomic<ExitCode> code{ExitCode::kData};
  dev_t device = 0;  // under the mutex of the bookkeeping, as the inode
  ino_t inode = 0;
  Map* next = nullptr;
};
std::atomic<Map*> maps{nullptr};
static_assert(std::atomic<Map*>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

/// What only calls outside of the handler use. Never destroyed: static objects may hold maps.
struct Bookkeeping {
  std::mutex mutex;
  std::unordered_map<const uint8_t*, Map*> used;
  std::vector<Map*> free;
  bool is_installed = false;
};
Bookkeeping& bookkeeping() {
  static auto* const books = new Bookkeeping;
  return *books;
}
struct sigaction previous;
thread_local constinit MapReader* t_reader = nullptr;

const Map* map_at(const void* address) {
  const auto* at = static_cast<const uint8_t*>(address);
  for (const Map* map = maps; map != nullptr; map = map->next) {
    const uint8_t* begin = map->begin;
    if (begin <= at && at < begin + map->size) { return map; }
  }
  return nullptr;
}

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) {}  // nobody is left to tell
}

extern "C" void on_map_fault(int number, siginfo_t* info, void*) {
  const bool is_of_memory = info->si_code > 0;  // not one that a process has sent
  const Map* map = is_of_memory ? map_at(info->si_addr) : nullptr;
  if (map == nullptr) {
    sigaction(number, &previous, nullptr);
    if (!is_of_memory) { raise(number); }  // otherwise the same access fails again
    return;
  }
  if (t_reader != nullptr) {
    t_reader->path = map->path;
    siglongjmp(t_reader->jump, 1);
  }
  for (const char* text : {"error: ", map->path.load(), ": ", kProblem, "\n"}) { write_text(text); }
  ::_exit(static_cast<int>(map->code.load()));
}

}  // namespace

void note_map(const uint8_t* begin, uint64_t size, const std::string& path, ExitCode code, int fd) {
  struct stat file {};
  ::fstat(fd, &file);
  Bookkeeping& books = bookkeeping();
  const std::lock_guard lock(books.mutex);
  if (!books.is_installed) {
    struct sigaction action {};
    action.sa_sigaction = on_map_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // siglongjmp leaves the handler, and no mask of signals is kept
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
    books.is_installed = true;
  }
  if (books.free.empty()) {
    Map* const added = new Map;
    added->next = maps;
    maps = added;
    books.free.push_back(added);
  }
  Map* const map = books.free.back();
  books.free.pop_back();
  map->path = ::strdup(path.c_str());
  map->code = code;
  map->device = file.st_dev;
  map->inode = file.st_ino;
  map->begin = begin;
  map->size = size;
  books.used[begin] = map;
}

void forget_map(const uint8_t* begin) {
  Bookkeeping& books = bookkeeping();
  const std::lock_guard lock(books.mutex);
  const auto at = books.used.find(begin);
  Map* const map = at->second;
  books.used.erase(at);
  map->size = 0;
  std::free(const_cast<char*>(map->path.exchange(nullptr)));
  books.free.push_back(map);
}

void require_uncut(const uint8_t* at) {
  std::string path;
  {
    const std::lock_guard lock(bookkeeping().mutex);
    const Map* map = map_at(at);
    struct stat file {};
    // A file that has another's place is not the mapped one, which is whole while it is mapped.
    if (map == nullptr || ::stat(map->path, &file) != 0 || file.st_ino != map->inode || file.st_dev != map->device ||
        static_cast<uint64_t>(file.st_size) >= map->size) {
      return;
    }
    path = map->path;
  }
  throw LostDataError(path, kProblem);
}

MapReader::MapReader() : outer(t_reader) { t_reader = this; }
MapReader::~MapReader() { t_reader = outer; }
void MapReader::fail() const { throw LostDataError(path, kProblem); }

}  // namespace hebb
