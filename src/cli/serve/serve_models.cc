#include "cli/serve/serve_models.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "backend/page_format.h"
#include "base/part_name.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/models/model_choice.h"
#include "cli/serve/model_size.h"
#include "cli/serve/serve_operations.h"
#include "gguf/reader.h"
#include "hub/choose_file.h"
#include "hub/resolve.h"
#include "model/keys.h"
#include "retention/policy_spec.h"
#include "scheduler/task.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

std::string real_path(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? path : real.string();
}

// Replaces the folders of a path in a message, which clients may read.
Status without_folders(const Status& status, const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return status;
  const std::string folder = path.substr(0, slash + 1);
  std::string message = status.message();
  for (std::size_t at = message.find(folder); at != std::string::npos; at = message.find(folder, at))
    message.erase(at, folder.size());
  return status.with_message(std::move(message));
}

Result<std::string> find_file(const std::string& typed, bool offline) {
  hub::HubEnvironment environment = hub_environment();
  environment.offline = environment.offline || offline;
  std::optional<PullWatch> watch;
  if (typed.starts_with("hf:")) watch.emplace();
  return hub::resolve_model(typed, environment, watch ? watch->options() : hub::PullOptions());
}

// Removes what belongs to the model of -m alone: its adapters, and the model that drafts for it.
void clear_own(ModelSettings& settings) {
  settings.engine.lora.clear();
  if (!settings.engine.draft_model.empty() && !check_draft(settings.draft, false).ok()) settings.draft.clear();
  settings.engine.draft_model.clear();
}

// Reads one table [[models]].
Result<ModelChoice> read_model_table(const ModelSources& sources, const std::vector<server::ConfigValue>& table,
                                     const ModelSettings& common) {
  ModelChoice choice;
  choice.settings = common;
  ModelSettings& settings = choice.settings;
  clear_own(settings);
  std::string typed;
  CLI::App options;
  options.add_option("--name", choice.name)->type_name("NAME");
  options.add_option("--path", typed)->type_name("FILE");
  options.add_flag("--preload,!--no-preload", choice.preload);
  add_lora_option(options, settings.engine.lora);
  options.add_option("--kv", settings.policy)->type_name("POLICY");
  options.add_option("--demote", settings.demote)->type_name("PLACE");
  add_kv_memory_option(options, settings.engine);
  options.add_option("--kv-type", settings.engine.kv_type)->type_name("TYPE");
  options.add_option("--kv-types", settings.kv_types)->type_name("TYPES")->take_all()->allow_extra_args(false);
  options.add_option("--chunk", settings.engine.chunk)->type_name("INT");
  options.add_option("--chat-template", settings.chat_template)->type_name("FILE");
  options.add_option("--temp", settings.temperature)->check(CLI::Range(0.0, 100.0))->type_name("FLOAT");
  options.add_option("--top-p", settings.top_p)->check(CLI::Range(1e-6, 1.0))->type_name("FLOAT");
  options.add_option("--min-p", settings.min_p)->check(CLI::Range(0.0, 1.0))->type_name("FLOAT");
  add_draft_option(options, settings.draft, settings.engine.draft_model);
  add_draft_model_option(options, settings.engine.draft_model);
  add_pooling_option(options, settings.engine);
  options.add_option("--max-batch", settings.batch)->check(in_range(1, 64))->type_name("INT");
  apply_config(options, sources.tables.file, table);
  const std::string place = table.empty()
                                ? sources.tables.file + ": [[models]]: "
                                : server::config_place(sources.tables.file, table.front().line, table.front().column);
  if (typed.empty()) return invalid_argument("{}a table [[models]] needs a path, such as path = \"model.gguf\"", place);
  Result<std::string> path = find_file(typed, sources.offline);
  if (!path.ok()) return path.status().with_message(place + path.status().message());
  settings.engine.model = std::move(*path);
  if (choice.name.empty()) choice.name = model_title(typed, settings.engine.model);
  choice.place = place;
  return choice;
}

bool is_adapter(const std::string& path) {
  const Result<gguf::File> file = gguf::File::open(path);
  return file.ok() && !refuse_adapter(*file).ok();
}

// Adds the models of a folder: its files, and its folders with a file in them. `adapters`: gets the names of files
// that are LoRA adapters, and so no models.
Status add_folder(const std::string& folder, const ModelSettings& common, std::vector<ModelChoice>& models,
                  std::vector<std::string>& adapters) {
  std::error_code error;
  std::vector<std::string> paths;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    paths.push_back(entry->path().string());
  if (error)
    return invalid_argument("models-dir={}: the folder cannot be read: {}", printable(folder, 500), error.message())
        .about({"models_dir"});
  std::ranges::sort(paths);
  for (const std::string& path : paths) {
    ModelChoice choice;
    choice.settings = common;
    clear_own(choice.settings);
    choice.asked = false;
    choice.settings.engine.model = path;
    if (fs::is_directory(path, error)) {
      std::vector<fs::path> inside;
      for (fs::directory_iterator file(path, error); !error && file != fs::directory_iterator(); file.increment(error))
        if (hub::is_weights_name(file->path().string())) inside.push_back(file->path());
      if (inside.empty()) continue;
      const Result<std::string> file = hub::model_in_folder(path);
      if (file.ok()) choice.settings.engine.model = *file;
      if (!file.ok()) choice.refusal = file.status();
      choice.name = file.ok() ? model_title(*file, *file) : fs::path(path).filename().string();
    } else {
      if (!hub::is_weights_name(path)) continue;
      if (const auto part = parse_part_name(path); part && part->place.number != 1) continue;
      choice.name = model_title(path, path);
    }
    if (is_adapter(choice.settings.engine.model)) {
      adapters.push_back(fs::path(choice.settings.engine.model).filename().string());
      continue;
    }
    models.push_back(std::move(choice));
  }
  return {};
}

void add_pulled(const ModelSettings& common, std::vector<ModelChoice>& models) {
  for (const hub::LocalModel& local : hub::local_models(hub_environment())) {
    if (!local.whole || (local.where != "hub" && local.where != "kvasir")) continue;
    ModelChoice choice;
    choice.settings = common;
    clear_own(choice.settings);
    choice.asked = false;
    choice.settings.engine.model = local.path;
    choice.name = model_title(local.name, local.path);
    const bool taken = std::ranges::any_of(models, [&](const ModelChoice& other) { return other.name == choice.name; });
    if (taken) choice.name = local.name;
    models.push_back(std::move(choice));
  }
}

// Removes found models that are there already, and refuses two models of one name.
Status check_names(std::vector<ModelChoice>& models) {
  std::vector<ModelChoice> kept;
  std::vector<std::string> paths;
  for (ModelChoice& model : models) {
    const std::string path = real_path(model.settings.engine.model);
    if (!model.asked && std::ranges::find(paths, path) != paths.end()) continue;
    const auto same = std::ranges::find(kept, model.name, &ModelChoice::name);
    if (same != kept.end())
      return invalid_argument(
          "two models have the name '{}': {} and {}; give one of them another with 'name' in a "
          "table [[models]], or rename its file",
          printable(model.name, 200), printable(same->settings.engine.model, 500),
          printable(model.settings.engine.model, 500));
    paths.push_back(path);
    kept.push_back(std::move(model));
  }
  models = std::move(kept);
  return {};
}

std::uint64_t memory_bound_of(const ModelSources& sources, std::size_t models) {
  if (sources.memory > 0) return sources.memory;
  return models > 1 ? memory_for_run(usable_cores()) : 0;
}

// Moves settings of their own form into the engine's options.
Status finish_settings(ModelSettings& settings) {
  KVASIR_RETURN_IF_ERROR(check_draft(settings.draft, !settings.engine.draft_model.empty()));
  KVASIR_RETURN_IF_ERROR(apply_demote(settings.demote, settings.policy, settings.engine));
  for (const std::string& list : settings.kv_types)
    for (std::string& codec : split_codecs(list)) settings.engine.kv_types.push_back(std::move(codec));
  return {};
}

// Plans what a model takes; sets its KV memory if there is a bound. `pinned`: stays loaded beside it; null: none does.
// Errors: those of plan_served_model; kResourceExhausted if the model does not fit.
Status plan_model(const ModelSet& set, const ModelChoice* pinned, ModelChoice& model) {
  const std::uint64_t others = pinned != nullptr ? pinned->size.total() : 0;
  const std::uint64_t left = set.memory - std::min(set.memory, others);
  // 0 would mean no bound.
  const std::uint64_t bound = set.memory > 0 ? std::max<std::uint64_t>(left, 1) : 0;
  KVASIR_ASSIGN_OR_RETURN(const PlannedModel planned, plan_served_model(model.settings, bound, set.models.size() > 1));
  model.size = planned.size;
  model.summary = planned.summary;
  if (set.memory == 0) return {};
  model.settings.engine.kv_memory = planned.size.kv;
  if (planned.size.total() <= left) return {};
  const std::string offered = pinned == nullptr
                                  ? fmt::format("is {}", human_bytes(set.memory))
                                  : fmt::format("leaves {} beside '{}', which stays loaded for {}", human_bytes(left),
                                                printable(pinned->name, 200), set.pinned_for);
  return exhausted(
             "it needs {} ({} of weights, {} of KV memory, {} of workspace), but --memory {}; raise --memory, lower "
             "--kv-memory or use a smaller model",
             human_bytes(planned.size.total()), human_bytes(planned.size.weights), human_bytes(planned.size.kv),
             human_bytes(planned.size.workspace), offered)
      .about({"memory"});
}

// Returns an error of a model's settings with the table that they are from.
Status in_table(const ModelChoice& model, const Status& status) {
  if (status.ok() || model.place.empty()) return status;
  return status.with_message(
      fmt::format("{}the model '{}': {}", model.place, printable(model.name, 200), status.message()));
}

// Returns a model's refusal with its name, which messages about its file have already.
Status named_refusal(const ModelChoice& model) {
  if (!model.place.empty()) return in_table(model, model.refusal);
  if (model.refusal.code() != StatusCode::kResourceExhausted) return model.refusal;
  return model.refusal.with_message(
      fmt::format("the model '{}' cannot be loaded: {}", printable(model.name, 200), model.refusal.message()));
}

}  // namespace

void add_pooling_option(CLI::App& command, EngineOptions& options) {
  command
      .add_option_function<std::string>(
          "--pooling",
          [&options](const std::string& name) {
            options.pooling = name == "mean" ? Pooling::kMean : name == "last" ? Pooling::kLast : Pooling::kNone;
          },
          "How the hidden states of a text become its embedding: mean, last (the last token's), or none, which refuses "
          "embeddings; default: as the model's file says")
      ->check(CLI::IsMember({"mean", "last", "none"}))
      ->type_name("KIND");
}

void add_model_sources(CLI::App& command, ModelSources& sources) {
  command
      .add_option("--models-dir", sources.folder,
                  "Serve every model of this folder too, named by its file, each loaded when it is asked for")
      ->type_name("FOLDER");
  command.add_flag("--pulled-models", sources.pulled,
                   "Serve the models that 'kvasir pull' has stored too, each loaded when it is asked for");
  add_bytes_option(command, "--memory", sources.memory,
                   "Bound of the weights, the KV memory and the workspace of all loaded models together; default: what "
                   "the system has left, for several models");
}

Result<ModelSet> list_models(const ModelSources& sources, const ModelSettings& common, const std::string& pinned_for) {
  ModelSet set;
  set.pinned_for = pinned_for;
  if (common.engine.model.empty() && !sources.name.empty())
    return invalid_argument(
               "--name is for the model of -m, and there is none; models of a folder have the names of "
               "their files, those of [[models]] each a 'name'")
        .about({"name"});
  if (common.engine.model.empty() && !common.engine.draft_model.empty())
    return invalid_argument(
               "a draft model is for the model of -m, and there is none; a table [[models]] names that of its model")
        .about({"draft_model", "draft"});
  if (common.engine.model.empty() && !common.engine.lora.empty())
    return invalid_argument(
               "--lora is for the model of -m, and there is none; a table [[models]] names the adapters of its model")
        .about({"lora"});
  if (!common.engine.model.empty()) {
    ModelChoice& first = set.models.emplace_back();
    first.settings = common;
    first.name = sources.name.empty() ? model_title(sources.typed, common.engine.model) : sources.name;
    first.preload = true;
  }
  for (const std::vector<server::ConfigValue>& table : sources.tables.tables) {
    KVASIR_ASSIGN_OR_RETURN(set.models.emplace_back(), read_model_table(sources, table, common));
  }
  std::vector<std::string> adapters;
  if (!sources.folder.empty()) KVASIR_RETURN_IF_ERROR(add_folder(sources.folder, common, set.models, adapters));
  if (sources.pulled) add_pulled(common, set.models);
  KVASIR_RETURN_IF_ERROR(check_names(set.models));
  if (set.models.empty())
    return invalid_argument("there is no model to serve: {} holds none; give one with -m, or another folder",
                            sources.folder.empty() ? "the folder of pulled models" : printable(sources.folder, 500))
        .about({"models_dir"});
  if (!adapters.empty())
    note(
        "kvasir: not offered, for they are LoRA adapters, which --lora or 'lora' in a table [[models]] adds to a "
        "model: {}\n",
        printable(fmt::format("{}", fmt::join(adapters, ", ")), 1000));
  set.memory = memory_bound_of(sources, set.models.size());
  if (const std::uint64_t available = memory_bound(); sources.memory > available)
    note("kvasir: --memory {} is more than the {} of memory available: a model may fail to load\n",
         human_bytes(sources.memory), human_bytes(available));
  std::optional<std::size_t> first;  // that can be loaded: the default
  const ModelChoice* pinned = nullptr;
  for (std::size_t i = 0; i < set.models.size(); ++i) {
    ModelChoice& model = set.models[i];
    if (!model.refusal.ok()) continue;
    if (first) model.settings.engine.prefix_dir.clear();  // a folder that one engine alone may use
    KVASIR_RETURN_IF_ERROR(in_table(model, finish_settings(model.settings)));
    model.refusal = plan_model(set, pinned, model);
    if (first || !model.refusal.ok()) continue;
    first = i;
    if (set.pinned_for.empty()) continue;
    model.preload = true;
    pinned = &model;
  }
  if (first)
    std::rotate(set.models.begin(), set.models.begin() + std::ptrdiff_t(*first),
                set.models.begin() + std::ptrdiff_t(*first) + 1);
  return set;
}

Status check_models(const ModelSet& set) {
  std::uint64_t preloaded = 0;
  bool usable = false;
  for (const ModelChoice& model : set.models) {
    if (model.asked && !model.refusal.ok()) return named_refusal(model);
    if (!model.refusal.ok()) continue;
    usable = true;
    if (model.preload) preloaded += model.size.total();
  }
  if (!usable) return named_refusal(set.models.front());
  if (set.memory == 0 || preloaded <= set.memory) return {};
  return exhausted(
             "the models that are loaded at the start take {} together, and --memory is {}; load fewer of them "
             "then, or give more",
             human_bytes(preloaded), human_bytes(set.memory))
      .about({"memory"});
}

Result<std::unique_ptr<Engine>> load_engine(const ModelSettings& settings, server::Log& log,
                                            const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  EngineOptions options = settings.engine;
  options.warn = [&log](const std::string& line) {
    log.write(server::LogLevel::kWarning, "prefixes", {{"message", line}});
  };
  options.scheduler.side_by_side = std::max(settings.batch, 1);
  KVASIR_ASSIGN_OR_RETURN(options.chat_template, read_chat_template(settings.chat_template));
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::open(options, progress));
  // Sizes the cache. It outlives this session. A session cannot drop thoughts, but requests take the same room.
  std::string policy = settings.policy;
  if (!policy.empty()) {
    KVASIR_ASSIGN_OR_RETURN(policy, with_thoughts(policy, "keep"));
  }
  KVASIR_RETURN_IF_ERROR(engine->new_session({.policy = policy, .sequences = sequences_of(settings)}).status());
  if (!policy.empty()) KVASIR_RETURN_IF_ERROR(engine->plan({.policy = settings.policy, .prompt = 1}).status());
  return engine;
}

server::ModelEntry entry_of(const ModelChoice& choice, server::Log& log, bool pinned) {
  const ModelSettings& settings = choice.settings;
  server::ModelEntry entry;
  entry.defaults = {choice.name, settings.policy, sampling_of(settings, choice.summary), std::max(settings.batch, 1),
                    settings.draft};
  entry.size = choice.size;
  entry.summary = choice.summary;
  entry.refusal = without_folders(choice.refusal, settings.engine.model);
  entry.pinned = pinned;
  entry.load = [settings, &log]() -> Result<std::unique_ptr<Engine>> {
    Result<std::unique_ptr<Engine>> engine = load_engine(settings, log);
    if (!engine.ok()) return without_folders(engine.status(), settings.engine.model);
    return engine;
  };
  return entry;
}

}  // namespace kvasir::cli
