// The settings: one typed table is the single source for parsing, --print-config and docs/settings.md.
//
// A Settings is read from the environment when a communicator is created and does not change after that. Add
// a setting by a member here and a row in settings_table.cc. Value type; from_environment may race only with
// setenv, as getenv does.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/parse.h"
#include "base/status.h"

namespace onebit {

/// Which addresses may be chosen: any, IPv4 only, IPv6 only.
enum class SocketFamily : std::uint8_t { kAny, kIPv4, kIPv6 };

/// The inclusive range of ports to listen on; 0-0 leaves the choice to the system.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Whether allreduces of NCCL jobs run in two levels.
enum class TwoLevel : std::uint8_t { kAuto, kOff, kOn };

struct Settings {
  // What is compressed, and how
  std::string compress = "all";
  std::uint64_t min_size = 65536;
  std::uint32_t block = 2048;  ///< 0 = whole
  bool scale_is_mean = false;
  std::uint64_t chunk = 0;  ///< elements; 0 = automatic
  std::uint32_t pipeline_depth = 4;
  std::uint32_t threads = 0;  ///< 0 = automatic
  std::string codec_impl = "auto";
  // Network
  std::string transport = "auto";
  std::string socket_ifname;
  SocketFamily socket_family = SocketFamily::kAny;
  PortRange port_range;
  std::uint32_t tcp_flows = 0;  ///< 0 = automatic
  std::uint64_t tcp_sndbuf = 0;
  std::uint64_t tcp_rcvbuf = 0;
  std::uint64_t tcp_zerocopy = 0;   ///< messages from this size on; 0 = none
  std::uint32_t traffic_class = 0;  ///< of the IP header; 0 = the system's own
  std::uint32_t spin_us = 200;
  std::string ib_hca;
  std::int32_t ib_gid_index = -1;  ///< -1 = automatic
  std::uint32_t ib_tc = 0;
  std::uint32_t ib_sl = 0;
  std::uint32_t ib_pkey = 0;
  std::uint32_t ib_timeout = 18;
  std::uint32_t ib_retries = 7;
  std::uint32_t ib_pairs = 1;
  std::uint32_t net_speed = 0;  ///< Mbit/s; 0 = as the system says
  std::uint32_t connect_retries = 34;
  std::uint32_t connect_retry_ms = 100;
  // Job set-up
  std::chrono::milliseconds init_timeout{120'000};
  std::chrono::milliseconds timeout{600'000};
  std::chrono::milliseconds link_timeout{30'000};
  std::string secret;  ///< from ONEBIT_SECRET or the contents of ONEBIT_SECRET_FILE
  std::string job_id;
  std::uint32_t master_port = 0;  ///< 0 = MASTER_PORT, or made from it
  // Allreduces of NCCL jobs
  std::uint32_t warmup_calls = 0;
  bool residuals_are_bfloat16 = false;
  TwoLevel two_level = TwoLevel::kAuto;
  std::string nccl_library;
  std::string cuda_library;
  // Messages
  LogLevel debug = LogLevel::kWarn;

  /// Reads every variable of the table. An error names the variable, its value and what is accepted.
  static Result<Settings> from_environment();
};

/// How a setting is read and shown.
struct SettingValue {
  std::function<Status(Settings&, std::string_view)> parse;  ///< the error says what is accepted
  std::function<std::string(const Settings&)> show;          ///< the value in the form that `parse` reads
};

/// A row of the table.
struct SettingRow {
  std::string_view name;  ///< the environment variable
  std::string_view
      nccl_name;  ///< NCCL's variable for the same thing, used where `name` is unset; empty if there is none
  std::string_view type;  ///< what is accepted, in words
  std::string_view meaning;
  SettingValue value;
};

/// Applies "NAME=VALUE" lines, separated by newlines, on top of `settings`. Errors as from_environment's.
Status apply_settings(Settings& settings, std::string_view lines);

/// All rows, in the order of the documentation.
std::span<const SettingRow> setting_rows();

/// "NAME=value" lines with the origin of each value (default, NAME or NCCL_NAME): what --print-config prints.
/// Secrets are shown as "(set)".
std::string print_settings(const Settings& settings);

/// Variables of the environment that begin as ours do and are no settings, with commas between.
std::string unknown_variables();
/// Logs them, once a process.
void warn_of_unknown_variables();

/// docs/settings.md, made from the table.
std::string settings_markdown();

}  // namespace onebit
