#include "cli/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "backend/page_format.h"
#include "base/byte_size.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "base/part_name.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "cli/signals.h"
#include "retention/demotion.h"
#include "retention/registry.h"
#include "retention/scored.h"
#include "text/utf8.h"

namespace kvasir::cli {
namespace {

bool g_quiet = false;                   // no notes, no progress
std::atomic<bool> g_line_open = false;  // what was printed last ends within a line

}  // namespace

int exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kUnsupported: return 2;
    case StatusCode::kResourceExhausted:
    case StatusCode::kIo:
    case StatusCode::kCancelled: return 1;
  }
  return 1;
}

void add_model_option(CLI::App& command, std::string& path) {
  command
      .add_option("-m,--model,model", path,
                  "Model: a GGUF file, any part of a split one, or its folder; hf:USER/REPO[:QUANT], which is fetched; "
                  "ollama:NAME[:TAG]; its name alone will do, without -m; default: see 'kvasir models'")
      ->type_name("FILE")
      ->envname("KVASIR_MODEL");
  const std::string offline = "Fetch nothing: hf:USER/REPO is taken from the cache alone";
  command.add_flag("--offline", offline);
}

CLI::Validator to_bytes() {
  const auto read = [](std::string& text) -> std::string {
    if (const std::optional<std::uint64_t> size = parse_byte_size(text)) {
      text = std::to_string(*size);
      return "";
    }
    if (is_too_large_size(text)) return fmt::format("'{}' is too large; give 8EiB or less", printable(text, 40));
    return fmt::format("'{}' is no size; give bytes, or a unit with them, such as 512MiB or 2GB", printable(text, 40));
  };
  return CLI::Validator(read, "");
}

CLI::Option* add_bytes_option(CLI::App& command, const std::string& name, std::uint64_t& bytes,
                              const std::string& help) {
  return command.add_option(name, bytes, help)->transform(to_bytes())->type_name("BYTES");
}

std::string kv_type_help() {
  return fmt::format(
      "How keys and values are stored: {}; apart: k=q8,v=q4; options: recent=N, rotate=k, v, kv or off, "
      "rope=long",
      fmt::join(kv_type_names(), ", "));
}

void add_kv_type_option(CLI::App& command, std::string& kv_type) {
  const bool automatic = kv_type == "auto";
  const char* const more = automatic ? "; auto: i16 where attention is faster with it on this machine, else f16" : "";
  CLI::Option* const option = command.add_option("--kv-type", kv_type, kv_type_help() + more)->capture_default_str();
  if (automatic) option->envname("KVASIR_KV_TYPE");
}

namespace {

void add_model_and_kernels(CLI::App& command, EngineOptions& options) {
  add_model_option(command, options.model);
  add_lora_option(command, options.lora);
  command.add_option("-t,--threads", options.threads, "Threads; 0: one per core")
      ->capture_default_str()
      ->envname("KVASIR_THREADS");
  command.add_option("--isa", options.isa, "Kernels: auto, generic, avx2, avx512, amx")
      ->capture_default_str()
      ->envname("KVASIR_ISA");
  command
      .add_option("--weight-dir", options.weight_dir,
                  "Folder for a file of packed weights, which later starts map and share; default: none")
      ->type_name("FOLDER");
  command.add_flag("--lock-weights,--mlock", options.lock_weights,
                   "Lock the weights in memory, so that they are never paged out");
}

void add_page_option(CLI::App& command, EngineOptions& options) {
  command.add_option("--page", options.page_slots, "Tokens per page: 16, 32 or 64")->capture_default_str();
}

}  // namespace

void add_engine_options(CLI::App& command, EngineOptions& options) {
  add_model_and_kernels(command, options);
  add_kv_type_option(command, options.kv_type);
  add_page_option(command, options);
}

void add_engine_options(CLI::App& command, EngineOptions& options, std::vector<std::string>& kv_types) {
  add_model_and_kernels(command, options);
  kv_types = {options.kv_type};
  command.add_option("--kv-type", kv_types, kv_type_help() + "; may be repeated: each policy runs on each")
      ->take_all()
      ->allow_extra_args(false)
      ->default_str(options.kv_type);
  add_page_option(command, options);
}

void add_chunk_option(CLI::App& command, EngineOptions& options) {
  command.add_option("--chunk", options.chunk, "Prompt tokens per forward pass; 0: the policy's own")
      ->capture_default_str();
}

void add_kv_memory_option(CLI::App& command, EngineOptions& options) {
  add_bytes_option(command, "--kv-memory", options.kv_memory,
                   "Bound of all KV memory, for example 512MiB; 0: what the policy needs")
      ->envname("KVASIR_KV_MEMORY");
}

CLI::Option* add_policy_option(CLI::App& command, std::string& policy, const std::string& help) {
  const auto not_empty = [](std::string& text) {
    return text.empty() ? "a policy needs a name; 'kvasir policies' lists them" : "";
  };
  return command.add_option("--kv", policy, help)->check(CLI::Validator(not_empty, ""));
}

void add_demote_options(CLI::App& command, std::string& demote, EngineOptions& options) {
  command.add_option(
      "--demote", demote,
      "Where what the policy of --kv drops goes instead of being lost: a codec (q8, q4, q4o, q3, q2, f16), "
      "file, or q4,file; with recall=4 pages that a token reads again; off");
  command
      .add_option("--demote-dir", options.demote_dir,
                  "Folder for the files of what is demoted, and of heads that synckv offloads; default, with --demote "
                  "file and offload=file: that of temporary files")
      ->type_name("FOLDER");
  add_bytes_option(command, "--demote-size", options.demote_size, "Most bytes of these files; default: 16GiB");
}

Status add_demote_dir(const std::string& policy, EngineOptions& options) {
  if (!options.demote_dir.empty()) return {};
  bool needs_folder = false;
  const Result<PolicySpec> spec = PolicySpec::parse(policy);
  if (!spec.ok()) return std::ranges::count(spec.status().settings(), "demote") > 0 ? spec.status() : Status();
  if (spec->demotion) {
    needs_folder = spec->demotion->file;
  } else {
    const auto made = make_policy(*spec);
    needs_folder = made.ok() && (*made)->as<FollowsHeads>() != nullptr;
  }
  if (!needs_folder) return {};
  std::error_code error;
  options.demote_dir = std::filesystem::temp_directory_path(error).string();
  if (error)
    return invalid_argument("there is no folder for temporary files ({}); name one with TMPDIR", error.message())
        .about({"demote_dir"});
  return {};
}

Status apply_demote(const std::string& demote, std::string& policy, EngineOptions& options) {
  if (!demote.empty() && policy.empty())
    return invalid_argument("--demote needs a policy that evicts; add --kv, such as --kv h2o:budget=1024,pos=original");
  policy = with_demotion(policy, demote);
  return add_demote_dir(policy, options);
}

void add_quiet_option(CLI::App& program) {
  const std::vector<CLI::App*> commands = program.get_subcommands({});
  if (commands.empty())
    program.add_flag_callback(
        "-q,--quiet", [] { g_quiet = true; }, "No notes and no progress on standard error; errors stay");
  for (CLI::App* command : commands) add_quiet_option(*command);
}

bool streams_are_one() {
  struct stat out {
  }, error{};
  return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &error) == 0 && out.st_dev == error.st_dev &&
         out.st_ino == error.st_ino;
}

void write_error(std::string_view text) {
  if (g_line_open.exchange(false) && !text.starts_with('\n') && streams_are_one()) std::fputc('\n', stderr);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void write_note(std::string_view text) {
  if (!g_quiet) write_error(text);
}

Status print(std::string_view text) {
  if (!text.empty()) g_line_open = !text.ends_with('\n');
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    const int error = errno;
    if (written >= 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (text.empty()) break;
    if (written < 0 && error == EAGAIN) {
      pollfd output{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&output, 1, -1);
    } else if (written < 0 && error == EPIPE) {
      return Status(StatusCode::kCancelled, "");  // ends like any program before `| head`, without a message
    } else if (written < 0 && error != EINTR) {
      return Status(error == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kIo,
                    fmt::format("cannot write to standard output: {}", std::strerror(error)));
    }
    // A terminal stopped by Ctrl-S continues at Ctrl-C, so the loop goes on; any other reader may never continue.
    if (interrupted() && !(interrupting_signal() == SIGINT && ::isatty(STDOUT_FILENO) != 0))
      return Status(StatusCode::kCancelled, "stopped while standard output took no more");
  }
  return {};
}

Status print_json(const Json& json) {
  return print(dump_line(json) + "\n");
}

void note_slow_kernels(std::string_view asked, std::string_view used) {
  if (used == "generic" && asked != used)
    note(
        "kvasir: this CPU lacks AVX2 with FMA: plain C++ kernels are used, "
        "which take some 30 times as long to read a prompt and 4 times to write\n");
}

void note_kv_memory(std::uint64_t kv_memory) {
  const std::uint64_t available = memory_bound();
  if (kv_memory > available)
    note("kvasir: --kv-memory {} is more than the {} of memory available: the system may end a run that uses more\n",
         human_bytes(kv_memory), human_bytes(available));
}

namespace {

// Returns the most tokens that a query sees under a bounded policy by range; nullopt for all other policies.
std::optional<std::int64_t> most_seen_by_range(const std::string& policy) {
  const auto made = make_policy(policy);
  return made.ok() && !(*made)->traits().compacts ? (*made)->bound() : std::nullopt;
}

}  // namespace

bool may_see_beyond(const std::string& policy, std::int64_t context) {
  // A query sees itself beside the kept tokens. One token more does not justify a warning of the default policy.
  return most_seen_by_range(policy).value_or(0) > context + 1;
}

void note_policy(const std::string& policy, int kv_heads) {
  const auto made = make_policy(policy);
  const DependsOnModel* depends = made.ok() ? (*made)->as<DependsOnModel>() : nullptr;
  if (depends == nullptr) return;
  if (const std::string remark = depends->remark(kv_heads); !remark.empty())
    note("kvasir: {}\n", printable(remark, 400));
}

bool drops_ranges(const std::string& policy) {
  const auto made = make_policy(policy);
  return made.ok() && !(*made)->traits().compacts && (*made)->traits().run_capacities.empty();
}

bool demotes(const std::string& policy) {
  const Result<PolicySpec> spec = PolicySpec::parse(policy);
  return spec.ok() && spec->demotion.has_value();
}

void note_beyond_context(const std::string& policy, std::int64_t kept_max, std::int64_t context, std::string_view saw) {
  const std::optional<std::int64_t> most = most_seen_by_range(policy);
  if (most && !may_see_beyond(policy, context)) return;
  const std::int64_t seen = std::min(kept_max, most.value_or(kept_max));
  if (seen > context)
    note("kvasir: under '{}' the model {} {} tokens at once; it was trained for {}\n", printable(policy, 200), saw,
         seen, context);
}

bool note_will_see_beyond(const std::string& policy, std::int64_t tokens, std::int64_t context,
                          std::string_view remedy) {
  const auto made = make_policy(policy);
  if (!made.ok()) return false;
  // What attention-scored policies keep depends on the text, except while they keep all of it.
  const PolicyTraits& traits = (*made)->traits();
  if (traits.compacts && !traits.holds_prompts) return false;
  const std::int64_t seen = std::min(tokens, most_seen_by_range(policy).value_or(tokens));
  if (seen <= context || (most_seen_by_range(policy) && !may_see_beyond(policy, context))) return false;
  note("kvasir: under '{}' the model will see {} tokens at once; it was trained for {}{}\n",
       printable(traits.spec, 200), seen, context, remedy);
  return true;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string printable(std::string_view text, std::size_t limit) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  text =
      text.substr(0, limit < text.size() ? limit + 4 : text.size());  // one character of up to 4 bytes beyond the limit
  std::string out;
  std::size_t valid = 0;  // the text is valid up to here
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= limit) return out + "...";
    if (i == valid) valid = i + find_invalid_utf8(text.substr(i)).value_or(text.size() - i);
    std::size_t length = 1;
    if (i < valid) length = byte(i) < 0xc0 ? 1 : byte(i) < 0xe0 ? 2 : byte(i) < 0xf0 ? 3 : 4;
    const bool c1 = length == 2 && byte(i) == 0xc2 && byte(i + 1) < 0xa0;  // control characters U+0080 to U+009F
    const bool escaped = i == valid || byte(i) < 0x20 || byte(i) == 0x7f || c1;
    if (byte(i) == '\n') {
      out += "\\n";
    } else if (escaped) {
      for (std::size_t k = i; k < i + length; ++k) out += fmt::format("\\x{:02x}", byte(k));
    } else {
      out += text.substr(i, length);
    }
    i += length;
    valid = std::max(valid, i);
  }
  return out;
}

Status check_output(const std::string& path, std::span<const std::string> inputs) {
  const auto check = [&](const std::string& input) {
    std::error_code error;  // set if a file does not exist: then they differ
    return std::filesystem::equivalent(path, input, error)
               ? invalid_argument("'{}' is the file that is read, and would be overwritten; give another name", path)
               : Status();
  };
  for (const std::string& input : inputs) {
    KVASIR_RETURN_IF_ERROR(check(input));
    if (const auto part = parse_part_name(input))
      for (std::uint64_t n = 1; n <= part->place.count; ++n)
        KVASIR_RETURN_IF_ERROR(check(part_path(part->stem, {n, part->place.count})));
  }
  return {};
}

Status check_session_output(const std::string& path, std::span<const std::string> inputs) {
  KVASIR_RETURN_IF_ERROR(check_output(path, inputs));
  KVASIR_RETURN_IF_ERROR(check_replaceable(path));
  constexpr std::string_view kMagic = "KVASIRS";  // of every format
  char begin[kMagic.size()] = {};
  std::ifstream file(path, std::ios::binary);
  file.read(begin, sizeof begin);
  const std::string_view found(begin, static_cast<std::size_t>(file.gcount()));
  if (!found.empty() && found != kMagic)
    return invalid_argument("'{}' exists and is not a session file; give another name, or remove it", path);
  return {};
}

Result<std::vector<std::string>> files_at(const std::string& path, std::string_view extension, std::string_view what) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector{path};
  std::vector<std::string> paths;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (entry->path().extension() == extension) paths.push_back(entry->path().string());
  if (error) return make_status(StatusCode::kIo, "cannot read the folder '{}': {}", path, error.message());
  if (paths.empty())
    return invalid_argument("the folder '{}' holds no {}: no file's name ends in {}", path, what, extension);
  std::ranges::sort(paths);
  return paths;
}

std::string id_ranges(std::span<const std::int64_t> ids, std::size_t limit) {
  std::string out;
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t last = i;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    const std::string range = last > i ? fmt::format("{}-{}", ids[i], ids[last]) : fmt::format("{}", ids[i]);
    if (out.size() + range.size() + 1 > limit) return out + " ...";
    out += (out.empty() ? "" : " ") + range;
    i = last + 1;
  }
  return out;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ReadingWork reading_work(const std::string& policy, std::int64_t window) {
  ReadingWork work;
  const auto made = make_policy(policy);
  if (!made.ok()) return work;  // recompute: every token costs the same
  work.most_kept = (*made)->bound().value_or(std::numeric_limits<std::int64_t>::max());
  if (window > 0) work.window = window;
  return work;
}

std::optional<std::int64_t> kept_behind_prompt(const std::string& policy, std::int64_t tokens) {
  const auto made = make_policy(policy);
  if (!made.ok()) return std::nullopt;
  if (const auto bound = (*made)->bound()) return std::min(tokens, *bound - 1);
  const PolicyTraits& traits = (*made)->traits();
  if (!traits.compacts) return tokens;  // a policy that drops nothing, or at a time that depends on the text
  const Result<PolicySpec> spec = PolicySpec::parse(traits.spec);  // in which recent=auto is a number
  if (!spec.ok()) return std::nullopt;
  // In a composition, the policy that keeps less decides.
  std::optional<std::int64_t> kept;
  for (const PolicyOptions& options : spec->parts) {
    const auto number = [&](std::string_view key) {
      const Result<std::int64_t> value = options.accepts(key) ? options.get_int(key, 0, kMostTokens) : 0;
      return value.ok() ? *value : 0;
    };
    if (const auto part = make_policy(PolicySpec{{options}, {}}); part.ok() && (*part)->bound()) {
      kept = std::min(kept.value_or(tokens), *(*part)->bound() - 1);
    } else if (options.accepts("budget")) {
      // A budget that is a share may be smaller than what is never dropped.
      const std::int64_t least = std::max(number("sinks"), number("protect")) + number("recent") + number("window");
      const Result<Budget> budget = options.get_budget("budget", kMostTokens);
      if (budget.ok()) kept = std::min(kept.value_or(tokens), std::max(budget->at(tokens), least));
    }
  }
  return kept;
}

ProgressBar::ProgressBar(std::string label, const ReadingWork& work)
    : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) != 0), started_(steady_seconds()), left_(work) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total, std::string_view unit) {
  const double now = steady_seconds();
  if (done >= before_)
    left_.add(now - started_, static_cast<std::int64_t>(done - before_), static_cast<std::int64_t>(total - before_));
  if (!terminal_ && done < total && lines_.due(now - started_)) {
    note("kvasir: {}: {} of {}{}{}, {:.0f} s left\n", label_, done, total, unit.empty() ? "" : " ", unit,
         left_.seconds());
  }
  if (g_quiet || !terminal_ || total == 0 || (done < total && now - last_ < 0.1) || now - started_ < 0.3) return;
  last_ = now;
  shown_ = true;
  winsize size{};
  const int columns = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const std::string tail = fmt::format(" {:3.0f}%  {}/{}{}{}  {:.0f} s left", share * 100, done, total,
                                       unit.empty() ? "" : " ", unit, left_.seconds());
  const int width = std::clamp(columns - static_cast<int>(label_.size() + tail.size()) - 4, 0, 40);
  const int filled = static_cast<int>(share * width);
  const std::string line = fmt::format("{} [{}{}]{}", label_, std::string(static_cast<std::size_t>(filled), '#'),
                                       std::string(static_cast<std::size_t>(width - filled), ' '), tail);
  note("\r{}\x1b[K", line.substr(0, static_cast<std::size_t>(columns - 1)));
  std::fflush(stderr);
}

}  // namespace kvasir::cli
