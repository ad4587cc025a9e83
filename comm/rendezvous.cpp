#include "comm/rendezvous.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace hebb {
namespace {

std::string joined(const std::function<const char*(const char*)>& variable, std::initializer_list<const char*> names) {
  std::string text;
  for (const char* name : names) {
    const char* value = variable(name);
    if (value != nullptr) { text += (text.empty() ? "" : ".") + std::string(value); }
  }
  return text;
}

}  // namespace

std::string read_launch_id(const std::function<const char*(const char*)>& variable) {
  std::string id;
  if (variable("HEBB_LAUNCH") != nullptr) {
    id = variable("HEBB_LAUNCH");  // hebb train --ranks
  } else if (variable("TORCHELASTIC_RUN_ID") != nullptr) {
    id = joined(variable, {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
  } else if (variable("PMIX_NAMESPACE") != nullptr) {
    id = variable("PMIX_NAMESPACE");
  } else if (variable("SLURM_JOB_ID") != nullptr) {
    id = joined(variable, {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"});
  } else if (variable("MASTER_PORT") != nullptr) {
    id = variable("MASTER_PORT");
  }
  for (char& c : id) {  // it becomes part of a file's name
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') { c = '_'; }
  }
  return id.substr(0, 100);
}

fs::path rendezvous_path(const fs::path& run_folder, const std::string& launch) {
  return run_folder / ("rendezvous." + (launch.empty() ? "" : launch + ".") + "json");
}

Descriptor write_rendezvous(const fs::path& path, const Rendezvous& rendezvous) {
  Json addresses = Json::array();
  for (const InterfaceAddress& a : rendezvous.addresses) {
    addresses.push(Json::object({{"interface", a.interface}, {"address", a.address}}));
  }
  const Json file = Json::object({{"addresses", addresses}, {"port", rendezvous.port}, {"secret", rendezvous.secret}});
  const std::string text = file.dump() + "\n";
  const fs::path temporary = fmt::format("{}.tmp-{:d}", path.string(), ::getpid());
  ::unlink(temporary.c_str());
  Descriptor out(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (out.is_open()) {
    ::flock(out.fd(), LOCK_EX | LOCK_NB);
  }  // where that is not possible, nobody can remove the file
  if (!out.is_open() || ::write(out.fd(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(out.fd()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    ::unlink(temporary.c_str());
    throw CheckpointError(path.string(), "cannot write where ranks meet: " + why);
  }
  return out;
}

std::optional<Rendezvous> read_rendezvous(const fs::path& path) {
  try {
    const Json file = parse_json(read_file(path), path.string());
    if (!file.is_object()) { return std::nullopt; }
    Rendezvous found{.addresses = {},
                     .port = static_cast<int>(frame_integer(file, "port", 1, 65535)),
                     .secret = frame_text(file, "secret")};
    if (found.secret.size() != 64) { return std::nullopt; }
    const Json* addresses = file.find("addresses");
    if (addresses == nullptr || !addresses->is_array()) { return std::nullopt; }
    for (const Json& entry : addresses->items()) {
      if (!entry.is_object()) { return std::nullopt; }
      found.addresses.push_back({frame_text(entry, "interface"), frame_text(entry, "address")});
    }
    return found;
  } catch (const Error&) { return std::nullopt; }  // not there, or of another program
}

void remove_left_rendezvous(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rendezvous.") && (name.ends_with("json") || name.find("json.tmp-") != std::string::npos)) {
      found.push_back(entry.path());
    }
  }
  for (const fs::path& path : found) {
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (file.is_open() && ::flock(file.fd(), LOCK_EX | LOCK_NB) == 0) { fs::remove(path, ignored); }
  }
}

std::string read_secret(const std::string& key, const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & 0077) != 0) {
    throw ConfigError(
        key, fmt::format("{} of mode {:03o}, which others can read or write", path.string(), status.st_mode & 0777),
        "a file of its owner alone: chmod 600 " + path.string());
  }
  std::string secret = read_file(path, ExitCode::kUsage);
  secret.erase(secret.find_last_not_of(" \t\r\n") + 1);
  if (secret.empty()) { throw ConfigError(key, "an empty file " + path.string(), "a file with a secret"); }
  return secret;
}

}  // namespace hebb
