#include "core/path_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <system_error>

namespace hebb {
namespace {

constexpr const char* kAnyFolders = "**";

using Paths = std::vector<fs::path>;

/// An empty path is the current folder.
bool is_folder(const fs::path& path) {
  std::error_code error;
  return path.empty() || fs::is_directory(path, error);
}

bool has_pattern(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

/// Whether there is an entry of this name, a link to nothing too.
bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none && error != std::errc::filename_too_long) {
    throw DataError(path.string(), "cannot look for the file: " + error.message());
  }
  return fs::exists(status);
}

/// Calls visit(entry, path) for each entry of a folder whose name matches.
template <class Visit> void each_matching(const fs::path& folder, const std::string& pattern, Visit&& visit) {
  std::error_code error;
  fs::directory_iterator it(folder.empty() ? "." : folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    const fs::path name = it->path().filename();
    if (::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD | FNM_NOESCAPE) == 0) { visit(*it, folder / name); }
  }
  if (error) { throw DataError(folder.empty() ? "." : folder.string(), "cannot list the folder: " + error.message()); }
}

/// `folder` and all folders below it, but hidden ones and links.
Paths folders_below(const fs::path& folder) {
  Paths folders{folder};
  for (size_t i = 0; i < folders.size(); ++i) {
    each_matching(fs::path(folders[i]), "*", [&](const fs::directory_entry& entry, const fs::path& path) {
      if (fs::is_directory(entry.symlink_status())) { folders.push_back(path); }
    });
  }
  return folders;
}

void append_files(const fs::path& folder, const std::string& pattern, Paths& files) {
  each_matching(folder, pattern, [&](const fs::directory_entry&, const fs::path& path) {
    if (!is_folder(path)) { files.push_back(path); }
  });
}

void sort_bytes(Paths& paths) {
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
}

/// The entries below `folder` that one component of a path means.
void append_component(const fs::path& folder, const std::string& name, bool is_last, Paths& paths) {
  if (!is_folder(folder)) { return; }
  if (is_there(folder / name)) {
    paths.push_back(folder / name);
  } else if (name == kAnyFolders && !is_last) {
    const Paths below = folders_below(folder);
    paths.insert(paths.end(), below.begin(), below.end());
  } else if (has_pattern(name)) {
    each_matching(folder, name, [&](const fs::directory_entry&, const fs::path& path) { paths.push_back(path); });
  }
}

/// What a path or pattern means, and whether a ** took part in it.
Paths match(const fs::path& pattern, bool& has_any_folders) {
  const fs::path below_root = pattern.relative_path();
  std::vector<std::string> names;
  for (const fs::path& component : below_root) {
    if (!component.empty()) { names.push_back(component.string()); }
  }
  Paths paths{pattern.root_path()};
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_last = i + 1 == names.size();
    Paths next;
    for (const fs::path& folder : paths) { append_component(folder, names[i], is_last, next); }
    has_any_folders |= names[i] == kAnyFolders && !is_last;
    sort_bytes(next);
    next.erase(std::unique(next.begin(), next.end()), next.end());  // of several ** each may find the same folder
    paths = std::move(next);
  }
  return names.empty() && !pattern.has_root_path() ? Paths{} : paths;
}

Paths sorted(Paths files, const std::string& what, const char* expected) {
  if (files.empty()) { throw MissingFileError(what, expected); }
  sort_bytes(files);
  return files;
}

}  // namespace

std::vector<fs::path> expand_paths(const std::string& path) {
  bool has_any_folders = false;
  Paths files;
  for (const fs::path& found : match(path, has_any_folders)) {
    if (!is_folder(found)) {
      files.push_back(found);
    } else if (!has_any_folders) {
      append_files(found, "*", files);
    }
  }
  return sorted(std::move(files), path,
                "no file matches; expected a file, a folder with files, or a pattern (*, ?, [..], **)");
}

std::vector<fs::path> files_matching(const fs::path& folder, const std::string& pattern) {
  Paths files;
  if (is_folder(folder)) { append_files(folder, pattern, files); }
  return sorted(std::move(files), (folder / pattern).string(), "no file matches");
}

std::vector<fs::path> files_below(const fs::path& folder, std::vector<fs::path>& links) {
  Paths files;
  for (const fs::path& below : folders_below(folder)) {
    each_matching(below, "*", [&](const fs::directory_entry& entry, const fs::path& path) {
      if (!is_folder(path)) {
        files.push_back(path);
      } else if (entry.is_symlink()) {
        links.push_back(path);
      }
    });
  }
  sort_bytes(links);
  return sorted(std::move(files), folder.string(), "no file in this folder or below it");
}

}  // namespace hebb
