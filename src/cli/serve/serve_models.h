// The models that `serve` offers: where they come from, what each takes, and how each is loaded.
// Thread-safety: main thread only, except load_engine().
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/serve/serve_config.h"
#include "kvasir/engine.h"
#include "server/admin/log.h"
#include "server/models/model_desk.h"

namespace kvasir::cli {

// The options that a model is loaded with, and the defaults of its requests. A table [[models]] sets some of them for
// one model.
struct ModelSettings {
  EngineOptions engine;
  std::vector<std::string> kv_types;  // each a list
  std::string chat_template;          // a file
  std::string policy = "full";
  std::string demote;
  std::optional<float> temperature, top_p, min_p;  // of requests that give none
  std::string draft;                               // of requests that give none
  int batch = 16;
};

// One model of the server.
struct ModelChoice {
  std::string name;
  ModelSettings settings;  // engine.model is the path
  bool preload = false;    // loaded before the server takes requests
  bool asked = true;       // named by the user, so that it must be usable; false: found in a folder
  server::ModelSize size;
  ModelSummary summary;
  Status refusal;  // why it cannot be loaded
  // Where the configuration file has its table, as messages begin with it; "": it has none.
  std::string place;
};

struct ModelSources {
  std::string typed;         // as given to -m; empty: none was given or found
  std::string name;          // of --name; empty: that of the file
  ConfigTables tables;       // [[models]]
  std::string folder;        // --models-dir; empty: none
  bool pulled = false;       // --pulled-models
  bool offline = false;      // fetch nothing
  std::uint64_t memory = 0;  // --memory; 0: of one model, no bound; of several, what the system has left
};

// Adds --models-dir, --pulled-models and --memory.
void add_model_sources(CLI::App& command, ModelSources& sources);

void add_pooling_option(CLI::App& command, EngineOptions& options);  // --pooling

struct ModelSet {
  std::vector<ModelChoice> models;  // not empty; the first is the default, unless it is refused as all others are
  std::uint64_t memory = 0;         // bound of all that are loaded; 0: none
  std::string pinned_for;           // option for which the default is never unloaded; empty: it may be
};

// Lists the models, and plans what each takes from the header of its file. Within the bound each gets a size of its KV
// memory here, unless it has one. A model that cannot be loaded gets a refusal: the error of its file, or
// kResourceExhausted if it never fits in the memory, of which a pinned default takes its part. `common`: the settings
// of models whose table gives no others, with the path of -m. `pinned_for`: see ModelSet. Errors: kInvalidArgument for
// a table that is wrong, for two models of one name and if there is no model.
Result<ModelSet> list_models(const ModelSources& sources, const ModelSettings& common, const std::string& pinned_for);

// Returns why no server can start with these models: the refusal of a model that the user named, or of the first if all
// are refused; kResourceExhausted if those that are loaded at the start do not fit together.
Status check_models(const ModelSet& set);

// Opens a model and makes its cache. Any thread. REQUIRES: `log` outlives the engine.
Result<std::unique_ptr<Engine>> load_engine(const ModelSettings& settings, server::Log& log,
                                            const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

// Returns what the desk is told of a model. `log` must outlive the engines.
server::ModelEntry entry_of(const ModelChoice& choice, server::Log& log, bool pinned);

}  // namespace kvasir::cli
