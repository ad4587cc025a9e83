#pragma once
#include <unistd.h>

#include "core/folder_lock.h"

namespace hebb {

/// A process that takes the lock of a folder and ends without releasing it.
inline pid_t leave_lock(const fs::path& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    static const FolderLock lock(folder);
    ::_exit(0);
  }
  return child;
}

}  // namespace hebb
