#pragma once
#include <setjmp.h>

#include <cstdint>
#include <string>

#include "core/error.h"

namespace hebb {

// A page of a mapped file that cannot be read is a SIGBUS: the file was cut after it was mapped, or its disk has an
// error. The handler looks its address up among the noted maps. Inside of read_mapped() a LostDataError follows;
// elsewhere an error line with the path, and the exit code of the map. A SIGBUS outside of all maps stays what it was.
// The page in which a cut file ends reads as zeros behind the end, without a signal.

/// A mapped file was whole when it was opened, and cannot be read any more.
class LostDataError : public DataError {
 public:
  using DataError::DataError;
};

/// MappedFile calls these. `fd`: the mapped file, which note_map() does not keep.
void note_map(const uint8_t* begin, uint64_t size, const std::string& path, ExitCode code, int fd);
void forget_map(const uint8_t* begin);

/// To be asked after a read that found zeros at the end of a page, or of a map, that holds `at`.
/// Errors: LostDataError where the map's file was cut.
void require_uncut(const uint8_t* at);

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
/// Errors: LostDataError naming the file.
template <class Read> void read_mapped(Read&& read) {
  MapReader reader;
  if (sigsetjmp(reader.jump, 0) != 0) { reader.fail(); }
  read();
}

}  // namespace hebb
