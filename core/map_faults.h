#pragma once
#include <setjmp.h>

#include <cstdint>
#include <string>

#include "core/error.h"

namespace hebb {

// A page of a mapped file that cannot be read is a SIGBUS: the file was cut after it was mapped, or its disk has an
// error. The handler looks its address up among the noted maps. Inside of read_mapped() a DataError follows; elsewhere
// an error line with the path, and the exit code of the map. A SIGBUS outside of all maps stays what it was.

/// MappedFile calls these.
void note_map(const uint8_t* begin, uint64_t size, const std::string& path, ExitCode code);
void forget_map(const uint8_t* begin);

/// Of a thread, while it reads.
struct MapReader {
  MapReader();
  ~MapReader();
  MapReader(const MapReader&) = delete;
  MapReader& operator=(const MapReader&) = delete;
  [[noreturn]] void fail() const;

  sigjmp_buf jump;
  MapReader* outer;
  const char* path = nullptr;  // where a read has failed
};

/// Calls read(), which copies from mapped files and has nothing to undo: it takes no memory and no lock.
/// Errors: DataError naming the file.
template <class Read> void read_mapped(Read&& read) {
  MapReader reader;
  if (sigsetjmp(reader.jump, 0) != 0) { reader.fail(); }
  read();
}

}  // namespace hebb
