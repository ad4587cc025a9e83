#pragma once
#include <string>
#include <vector>

#include "core/files.h"

namespace hebb {

// Beside expand_paths() (core/files.h): files of a folder that is no pattern, in byte order of their paths. Names with
// a leading dot are left out. Errors: MissingFileError where there is none, DataError for a folder that cannot be
// listed.

/// The files in `folder` whose names match `pattern`.
std::vector<fs::path> files_matching(const fs::path& folder, const std::string& pattern);

/// The files in `folder` and in all folders below it. Links to folders are not followed: they go to `links`.
std::vector<fs::path> files_below(const fs::path& folder, std::vector<fs::path>& links);

}  // namespace hebb
