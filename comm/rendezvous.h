#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/sockets.h"
#include "core/files.h"

namespace hebb {

/// What keeps one attempt to start a run apart from others: the launcher's name for it; empty where the launcher has
/// none. `variable` gives the value of an environment variable or null.
std::string read_launch_id(const std::function<const char*(const char*)>& variable);

/// Where rank 0 listens and what only ranks know, for ranks that share its run folder.
struct Rendezvous {
  std::vector<InterfaceAddress> addresses;  // in the order in which they are to be tried
  int port = 0;
  std::string secret;
};

/// RUN/rendezvous.LAUNCH.json.
fs::path rendezvous_path(const fs::path& run_folder, const std::string& launch);
/// Writes the file by rename, readable by its owner alone. The result holds a lock on the file: while it is open, no
/// other start removes the file. Errors: CheckpointError.
[[nodiscard]] Descriptor write_rendezvous(const fs::path& path, const Rendezvous& rendezvous);
/// What the file says; nothing where it does not exist or makes no sense (yet).
std::optional<Rendezvous> read_rendezvous(const fs::path& path);
/// Removes what killed starts left behind in a folder: the files that nobody holds.
void remove_left_rendezvous(const fs::path& folder);

/// The secret of a file, without white space at its end. Errors: Error of kind kUsage for a file that cannot be read,
/// is empty or that others than its owner may read or write.
std::string read_secret(const std::string& key, const fs::path& path);

}  // namespace hebb
