#include "cli/models/model_choice.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/part_name.h"
#include "base/status.h"
#include "cli/signals.h"
#include "hub/model_name.h"
#include "hub/resolve.h"
#include "kvasir/version.h"

namespace kvasir::cli {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_true(std::string value) {
  for (char& c : value)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// Gives an option another value, but keeps the typed text, which messages quote.
void rebind(CLI::Option& option, const std::string& value) {
  const std::vector<std::string> typed = option.results();
  option.clear();
  option.add_result(value);
  option.run_callback();
  option.clear();
  for (const std::string& text : typed) option.add_result(text);
}

}  // namespace

hub::HubEnvironment hub_environment() {
  std::error_code error;
  return {.home = variable("HOME"),
          .xdg_cache_home = variable("XDG_CACHE_HOME"),
          .hf_home = variable("HF_HOME"),
          .hf_hub_cache = variable("HF_HUB_CACHE"),
          .huggingface_hub_cache = variable("HUGGINGFACE_HUB_CACHE"),
          .hf_token = variable("HF_TOKEN"),
          .hf_token_path = variable("HF_TOKEN_PATH"),
          .hf_endpoint = variable("HF_ENDPOINT"),
          .kvasir_cache = variable("KVASIR_CACHE"),
          .ollama_models = variable("OLLAMA_MODELS"),
          .executable = std::filesystem::read_symlink("/proc/self/exe", error).string(),
          .offline = is_true(variable("HF_HUB_OFFLINE"))};
}

PullWatch::PullWatch() {
  catch_interrupts();
}

PullWatch::~PullWatch() {
  bar_.reset();
  if (!interrupted()) release_interrupts();
}

void PullWatch::show(std::uint64_t done, std::uint64_t total) {
  const double now = steady_seconds();
  if (!before_) {
    before_ = done;
    started_ = now;
    bar_.emplace("fetching");
    bar_->start_at(done >> 20);
  }
  // `done` falls below the bytes present at the start if a file could not be continued and starts anew.
  const double brought = done > *before_ ? static_cast<double>(done - *before_) : 0;
  const double rate = now > started_ ? brought / (now - started_) / (1 << 20) : 0;
  bar_->update(done >> 20, total >> 20, fmt::format("MiB, {:.1f} MiB/s", rate));
}

hub::PullOptions PullWatch::options() {
  hub::PullOptions options;
  options.transfer.user_agent = std::string("kvasir/") + kVersion;
  options.transfer.cancelled = [] { return interrupted(); };
  options.transfer.note = [](const std::string& line) { note("kvasir: {}\n", printable(line, 1000)); };
  options.progress = [this](std::uint64_t done, std::uint64_t total) { show(done, total); };
  return options;
}

Status resolve_model_option(CLI::App& program) {
  CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  CLI::Option* model = command->get_option_no_throw("--model");
  if (model == nullptr) return {};
  const CLI::Option* compare = command->get_option_no_throw("--compare");
  if (compare != nullptr && compare->count() > 0) return {};  // kvasir profile, without a model
  hub::HubEnvironment environment = hub_environment();
  environment.offline = environment.offline || command->get_option("--offline")->as<bool>();
  if (model->count() == 0) {
    for (const char* others :
         {"--models", "--models-dir", "--pulled-models", "--endpoint", "--list"})  // of kvasir serve, eval tasks
      if (const CLI::Option* given = command->get_option_no_throw(others); given != nullptr && given->count() > 0)
        return {};
    KVASIR_ASSIGN_OR_RETURN(const hub::DefaultModel found, hub::default_model(environment));
    note("kvasir: model: {} at {}; -m takes another\n", found.title, printable(found.path, 500));
    rebind(*model, found.path);
    return {};
  }
  const std::string typed = model->as<std::string>();
  std::string path;
  {
    std::optional<PullWatch> watch;
    if (typed.starts_with("hf:")) watch.emplace();
    KVASIR_ASSIGN_OR_RETURN(path,
                            hub::resolve_model(typed, environment, watch ? watch->options() : hub::PullOptions()));
  }
  if (path != typed) rebind(*model, path);
  return {};
}

std::string model_title(const std::string& typed, const std::string& path) {
  const Result<hub::ModelName> name = hub::parse_model_name(typed);
  if (name.ok() && name->place == hub::ModelPlace::kOllama) return hub::to_string(*name).substr(7);
  if (const auto part = parse_part_name(path)) return part->stem.substr(part->stem.rfind('/') + 1);
  const std::string file = path.substr(path.rfind('/') + 1);
  return file.ends_with(".gguf") ? file.substr(0, file.size() - 5) : file;
}

}  // namespace kvasir::cli
