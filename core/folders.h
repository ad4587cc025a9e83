#pragma once
#include "core/files.h"

namespace hebb {

/// Creates a folder and those on the way to it, with their names on the disk, also where another process creates or
/// removes them meanwhile. Returns the outermost that was missing; empty where all were there.
/// Errors: CheckpointError with path and reason.
fs::path create_folders(const fs::path& path);

}  // namespace hebb
