// Reading a rank's place from the variables of torchrun, Open MPI, PMI and Slurm.
#include "bootstrap/launcher.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace onebit::bootstrap {
namespace {

/// The variables of a launcher.
struct Dialect {
  std::string_view name;
  std::string_view rank;
  std::string_view size;
  std::string_view local_size;
};
constexpr std::array<Dialect, 4> kDialects{{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", ""},
}};

// Ports that we make lie above Linux' range for outgoing connections (32768-60999), which might be using
// them.
constexpr std::uint64_t kFirstMadePort = 61001;
constexpr std::uint64_t kMadePorts = 4500;

/// The value of a variable; empty when unset.
std::string get(std::string_view name) {
  const char* value = name.empty() ? nullptr : std::getenv(std::string(name).c_str());
  return value == nullptr ? std::string() : std::string(value);
}

/// A variable's whole number from `low` to `high`; nothing when unset.
Result<std::optional<int>> read_number(std::string_view name, int low, int high) {
  const std::string text = get(name);
  if (text.empty()) return std::optional<int>();
  int value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last || value < low || value > high) {
    return Status::error(Code::kInvalidUsage, "{}={}: accepted is a whole number from {} to {}", name, text,
                         low, high);
  }
  return std::optional<int>(value);
}

/// `text` as a number when it is one, else a hash of it.
std::uint64_t number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return value;
  return XXH3_64bits(text.data(), text.size());
}

std::uint16_t made_port(std::uint64_t from) {
  return static_cast<std::uint16_t>(kFirstMadePort + from % kMadePorts);
}

bool under_torchrun() {
  return !get("TORCHELASTIC_RUN_ID").empty() || !get("TORCHELASTIC_USE_AGENT_STORE").empty();
}

/// What a launcher calls the job; only what it gives to every rank alike.
std::string job_id_of(const Dialect& dialect) {
  if (dialect.name == "torchrun") return get("TORCHELASTIC_RUN_ID");
  if (dialect.name == "Open MPI") {
    const std::string id = get("OMPI_MCA_ess_base_jobid");
    return id.empty() ? get("PMIX_NAMESPACE") : id;
  }
  if (dialect.name == "PMI") return get("PMI_JOBID");
  const std::string job = get("SLURM_JOB_ID"), step = get("SLURM_STEP_ID");
  return job.empty() || step.empty() ? job : job + "." + step;
}

/// Rank, size and local size, checked against each other and against lone variables of other dialects.
Result<const Dialect*> read_place(Launch& launch) {
  const Dialect* chosen = nullptr;
  std::string_view half_set, half_missing;  // of the first pair of which only one is set
  for (const Dialect& dialect : kDialects) {
    const bool rank = !get(dialect.rank).empty(), size = !get(dialect.size).empty();
    if (rank && size) {
      chosen = &dialect;
      break;
    }
    if (rank != size && half_set.empty()) {
      half_set = rank ? dialect.rank : dialect.size;
      half_missing = rank ? dialect.size : dialect.rank;
    }
  }
  // srun speaks PMI too; its own variables say more (the hosts, the job).
  const Dialect& slurm = kDialects.back();
  if (chosen != nullptr && chosen->name == "PMI" && get(slurm.rank) == get(chosen->rank) &&
      get(slurm.size) == get(chosen->size)) {
    chosen = &slurm;
  }
  if (chosen == nullptr && !half_set.empty()) {
    return Status::error(Code::kInvalidUsage, "{}={} is set, but {} is not", half_set, get(half_set),
                         half_missing);
  }
  if (chosen == nullptr) {
    return Status(Code::kInvalidUsage,
                  "no launcher's variables are set: start the ranks by torchrun, mpirun or srun, set RANK, "
                  "WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each, or join by a unique id");
  }

  ONEBIT_ASSIGN_OR_RETURN(const std::optional<int> size, read_number(chosen->size, 1, kMaxWorldSize));
  ONEBIT_ASSIGN_OR_RETURN(const std::optional<int> rank, read_number(chosen->rank, 0, kMaxWorldSize - 1));
  ONEBIT_ASSIGN_OR_RETURN(const std::optional<int> local, read_number(chosen->local_size, 1, kMaxWorldSize));
  launch.world_size = *size;
  launch.rank = *rank;
  launch.local_world_size = local.value_or(0);
  if (launch.rank >= launch.world_size) {
    return Status::error(Code::kInvalidUsage, "{}={} contradicts {}={}: ranks count from 0", chosen->rank,
                         *rank, chosen->size, *size);
  }
  if (launch.local_world_size > launch.world_size) {
    return Status::error(Code::kInvalidUsage, "{}={} contradicts {}={}", chosen->local_size, *local,
                         chosen->size, *size);
  }
  // The lone one of a pair that comes before the chosen one says the same, or one of them is wrong.
  for (const Dialect* other = kDialects.data(); other != chosen; ++other) {
    ONEBIT_ASSIGN_OR_RETURN(const std::optional<int> its_size, read_number(other->size, 1, kMaxWorldSize));
    ONEBIT_ASSIGN_OR_RETURN(const std::optional<int> its_rank,
                            read_number(other->rank, 0, kMaxWorldSize - 1));
    if (its_size && *its_size != *size) {
      return Status::error(Code::kInvalidUsage, "{}={} contradicts {}={}", other->size, *its_size,
                           chosen->size, *size);
    }
    if (its_rank && *its_rank != *rank) {
      return Status::error(Code::kInvalidUsage, "{}={} contradicts {}={}", other->rank, *its_rank,
                           chosen->rank, *rank);
    }
  }
  launch.launcher = chosen->name;
  return chosen;
}

Status read_master_host(const Dialect& dialect, Launch& launch) {
  launch.master_host = get("MASTER_ADDR");
  if (!launch.master_host.empty() || launch.world_size == 1) return Status();
  if (dialect.name == "Slurm") {
    for (const std::string_view name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
      const std::string list = get(name);
      if (list.empty()) continue;
      launch.master_host = first_host(list);
      if (!launch.master_host.empty()) return Status();
      return Status::error(Code::kInvalidUsage, "{}={}: accepted is a list of hosts, as in node[1-4,7]", name,
                           list);
    }
    return Status(Code::kInvalidUsage,
                  "neither MASTER_ADDR nor SLURM_JOB_NODELIST is set: set MASTER_ADDR to the host of rank 0");
  }
  if (dialect.name != "torchrun" && launch.local_world_size == launch.world_size) {
    launch.master_host = "127.0.0.1";
    return Status();
  }
  return Status::error(Code::kInvalidUsage,
                       "MASTER_ADDR is not set: set it to the host or address of rank 0 on all {} ranks{}",
                       launch.world_size, dialect.name == "Open MPI" ? " (mpirun -x MASTER_ADDR=...)" : "");
}

Status read_master_port(const Dialect& dialect, const Settings& settings, Launch& launch) {
  ONEBIT_ASSIGN_OR_RETURN(const std::optional<int> given, read_number("MASTER_PORT", 1, 65535));
  if (settings.master_port != 0) {
    launch.master_port = static_cast<std::uint16_t>(settings.master_port);
  } else if (given && under_torchrun()) {
    launch.master_port = made_port(static_cast<std::uint64_t>(*given));
    log(LogLevel::kInfo,
        "MASTER_PORT={} belongs to torchrun's store: ranks meet at port {} (ONEBIT_MASTER_PORT sets another)",
        *given, launch.master_port);
  } else if (given) {
    launch.master_port = static_cast<std::uint16_t>(*given);
  } else if (dialect.name != "torchrun" && !launch.job_id.empty()) {
    // Steps of one Slurm job run side by side; 1009 keeps their ports apart.
    const auto dot = dialect.name == "Slurm" ? launch.job_id.find('.') : std::string::npos;
    std::uint64_t number = number_of(std::string_view(launch.job_id).substr(0, dot));
    if (dot != std::string::npos) number += 1009 * number_of(std::string_view(launch.job_id).substr(dot + 1));
    launch.master_port = made_port(number);
    log(LogLevel::kInfo, "no MASTER_PORT: ranks meet at port {}, made from the job id {}", launch.master_port,
        launch.job_id);
  } else if (launch.world_size > 1) {
    return Status::error(Code::kInvalidUsage,
                         "MASTER_PORT is not set: set it to a free port of rank 0 on all {} ranks",
                         launch.world_size);
  }
  return Status();
}

}  // namespace

std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] == ']') return {};
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const auto close = list.find(']', at);
    if (close == std::string_view::npos) return {};
    const std::string_view ranges = list.substr(at + 1, close - at - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) return {};
    host += first;
    at = close + 1;
  }
  return host;
}

Result<Launch> detect_launch(const Settings& settings) {
  Launch launch;
  ONEBIT_ASSIGN_OR_RETURN(const Dialect* dialect, read_place(launch));
  launch.job_id = settings.job_id.empty() ? job_id_of(*dialect) : settings.job_id;
  ONEBIT_RETURN_IF_ERROR(read_master_host(*dialect, launch));
  ONEBIT_RETURN_IF_ERROR(read_master_port(*dialect, settings, launch));
  return launch;
}

}  // namespace onebit::bootstrap
