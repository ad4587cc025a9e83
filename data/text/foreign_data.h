#pragma once
#include <string_view>

#include "core/files.h"

namespace hebb {

/// Refuses a file of a data set that another program writes in a format of its own, with the line that converts it:
/// Arrow files of Hugging Face datasets, MDS (mosaicml-streaming), litdata. By its name and, for index.json, by what
/// it holds.
/// Errors: DataError.
void refuse_foreign(const fs::path& file);

/// The same by the first bytes of a file: Arrow, NumPy.
void refuse_foreign_bytes(const fs::path& file, std::string_view head);

}  // namespace hebb
