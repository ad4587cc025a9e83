#include "comm/launched_rank.h"

#include <map>

#include "core/error.h"
#include "tests/test.h"

namespace {

using Variables = std::map<std::string, std::string>;

LaunchedRank read(const Variables& variables) {
  return read_launched_rank([&](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},        {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "2"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSrun{{"SLURM_PROCID", "7"}, {"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_LOCALID", "3"}};

}  // namespace

TEST_CASE("every launcher's variables are read", "[fast]") {
  const LaunchedRank torchrun = read(kTorchrun);
  CHECK((torchrun.rank == 5 && torchrun.size == 8 && torchrun.local_rank == 1 && torchrun.local_size == 4));
  CHECK((torchrun.address == "a" && torchrun.port == 29500 && torchrun.size_variable == "WORLD_SIZE"));
  CHECK(read(with(kTorchrun, "MASTER_PORT", "65535")).port == 65535);
  const LaunchedRank mpirun = read(kMpirun);
  CHECK((mpirun.rank == 2 && mpirun.size == 4 && mpirun.local_rank == 0 && mpirun.local_size == 2));
  CHECK((mpirun.address.empty() && mpirun.port == 0 && mpirun.size_variable == "OMPI_COMM_WORLD_SIZE"));
  const LaunchedRank srun = read(kSrun);
  CHECK((srun.rank == 7 && srun.size == 16 && srun.local_rank == 3 && !srun.local_size));
  const LaunchedRank alone = read({});
  CHECK((alone.rank == 0 && alone.size == 1 && !alone.local_rank && alone.size_variable.empty()));
  const LaunchedRank bare = read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  CHECK((bare.rank == 1 && bare.size == 2 && !bare.local_rank && !bare.local_size));
}

TEST_CASE("the first launcher that gives rank and size counts", "[fast]") {
  Variables all = kSrun;
  all.insert(kMpirun.begin(), kMpirun.end());
  CHECK(read(all).size == 4);  // ranks of an mpirun inside an allocation
  all.insert(kTorchrun.begin(), kTorchrun.end());
  CHECK(read(all).size == 8);
  all.erase("RANK");
  CHECK(read(all).size == 4);
  // A batch script is one process.
  CHECK(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).size == 1);
}

TEST_CASE("an empty variable is none", "[fast]") {
  CHECK(read({{"RANK", ""}, {"WORLD_SIZE", ""}}).size_variable.empty());
  CHECK(read(with(kSrun, "RANK", "")).size_variable == "SLURM_STEP_NUM_TASKS");
  CHECK_FALSE(read(with(kTorchrun, "LOCAL_RANK", "")).local_rank.has_value());
  CHECK(read(with(kTorchrun, "MASTER_PORT", "")).port == 0);
}

TEST_CASE("variables that are no ranks are named", "[fast]") {
  const auto fails = [](const Variables& variables, const std::string& name, const std::string& what) {
    CAPTURE(name);
    CHECK_THROWS_AS(read(variables), CommError);
    CHECK_THROWS_WITH(read(variables), Catch::Contains("environment variable " + name + ":") && Catch::Contains(what));
  };
  for (const Variables& row : {kTorchrun, kMpirun, kSrun}) {
    for (const auto& [name, value] : row) {
      if (name == "MASTER_ADDR") { continue; }
      for (const std::string bad : {"four", "3x", " 1", "-1", "99999999999999999999"}) {
        fails(with(row, name, bad), name, "found \"" + bad + "\"");
      }
    }
  }
  fails(with(kTorchrun, "RANK", "8"), "RANK", "8 must be less than WORLD_SIZE = 8");
  fails(with(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE", "expected an integer >= 1");
  fails(with(kTorchrun, "LOCAL_RANK", "4"), "LOCAL_RANK", "4 must be less than LOCAL_WORLD_SIZE = 4");
  fails(with(kTorchrun, "LOCAL_WORLD_SIZE", "9"), "LOCAL_WORLD_SIZE", "expected at most WORLD_SIZE = 8");
  fails(with(kTorchrun, "MASTER_PORT", "65536"), "MASTER_PORT", "expected at most 65535");
  fails(with(kSrun, "SLURM_LOCALID", "16"), "SLURM_LOCALID", "16 must be less than SLURM_STEP_NUM_TASKS = 16");
}
