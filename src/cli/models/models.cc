// kvasir pull and kvasir models: fetches a model, lists the local ones, removes one.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/command.h"
#include "cli/models/model_choice.h"
#include "hub/model_name.h"
#include "hub/resolve.h"

namespace kvasir::cli {
namespace {

struct PullCommand {
  std::string name;
  double timeout = 30;
  int tries = 5;
  double wait = 1;
  bool json = false;
};

Status pull_model(const PullCommand& command) {
  std::string typed = command.name;
  if (const std::string meant = hub::name_meant(typed); !meant.empty()) typed = meant;
  KVASIR_ASSIGN_OR_RETURN(const hub::ModelName name, hub::parse_model_name(typed));
  if (name.place == hub::ModelPlace::kOllama)
    return invalid_argument("{} is fetched by 'ollama pull', and read where it is: -m {}", typed, typed);
  if (name.place != hub::ModelPlace::kHub)
    return invalid_argument("'{}' is no model of the hub; give hf:USER/REPO or hf:USER/REPO:QUANT", typed);
  if (!(command.timeout > 0 && command.timeout <= 86400))
    return invalid_argument("timeout={:g} is not above 0 and up to 86400 s", command.timeout).about({"timeout"});
  if (command.tries < 1 || command.tries > 1000)
    return invalid_argument("tries={} is outside 1 to 1000", command.tries).about({"tries"});
  if (!(command.wait >= 0 && command.wait <= 120))
    return invalid_argument("wait={:g} is outside 0 to 120 s", command.wait).about({"wait"});
  hub::PulledModel pulled;
  {
    PullWatch watch;
    hub::PullOptions options = watch.options();
    options.transfer.stall_seconds = command.timeout;
    options.transfer.tries = command.tries;
    options.transfer.wait_seconds = command.wait;
    KVASIR_ASSIGN_OR_RETURN(pulled, hub::pull(name, hub_environment(), options));
  }
  if (command.json)
    return print_json({{"model", to_string(name)},
                       {"path", pulled.path},
                       {"files", pulled.files},
                       {"commit", pulled.commit},
                       {"bytes", pulled.bytes},
                       {"fetched_bytes", pulled.fetched}});
  if (pulled.fetched == 0)
    note("kvasir: {} is in the cache already\n", to_string(name));
  else
    note("kvasir: {} of {} fetched, with the hash that the hub lists\n", human_bytes(pulled.fetched), to_string(name));
  return print(pulled.path + "\n");
}

Status list_models(bool json) {
  const hub::HubEnvironment environment = hub_environment();
  const std::vector<hub::LocalModel> models = hub::local_models(environment);
  const Result<hub::DefaultModel> preferred = hub::default_model(environment);
  if (json) {
    Json list = Json::array();
    for (const hub::LocalModel& model : models)
      list.push_back({{"name", model.name},
                      {"path", model.whole ? Json(model.path) : Json(nullptr)},
                      {"bytes", model.bytes},
                      {"quant", model.quant.empty() ? Json(nullptr) : Json(model.quant)},
                      {"whole", model.whole},
                      {"where", model.where}});
    return print_json({{"models", list}, {"default", preferred.ok() ? Json(preferred->path) : Json(nullptr)}});
  }
  if (models.empty())
    note("kvasir: there are no models here; 'kvasir pull hf:USER/REPO' fetches one of the Hugging Face hub\n");
  std::vector<std::string> names;
  std::size_t width = 0;
  for (const hub::LocalModel& model : models) {
    names.push_back(printable(model.name, 500));
    width = std::max(width, names.back().size());
  }
  std::string out;
  for (std::size_t i = 0; i < models.size(); ++i)
    out += fmt::format("{:<{}}  {:>10}  {:<10}  {}\n", names[i], width, human_bytes(models[i].bytes),
                       models[i].quant.empty() ? "-" : models[i].quant,
                       models[i].whole ? models[i].where : models[i].where + ", fetched in part");
  KVASIR_RETURN_IF_ERROR(print(out));
  if (!std::ranges::all_of(models, &hub::LocalModel::whole))
    note(
        "kvasir: 'kvasir pull NAME' goes on with what is fetched in part; 'kvasir models remove --partial NAME' "
        "removes it\n");
  if (preferred.ok()) note("kvasir: without -m: {} at {}\n", preferred->title, printable(preferred->path, 500));
  return {};
}

Status remove_named(const std::string& name, bool partial, bool json) {
  KVASIR_ASSIGN_OR_RETURN(const hub::RemovedModel removed, partial ? hub::remove_partial(name, hub_environment())
                                                                   : hub::remove_model(name, hub_environment()));
  if (json) return print_json({{"model", name}, {"freed_bytes", removed.freed}, {"shared_bytes", removed.shared}});
  return print(fmt::format("{} removed, {} freed{}\n", printable(name, 300), human_bytes(removed.freed),
                           removed.shared > 0
                               ? fmt::format("; {} stay, which another snapshot refers to", human_bytes(removed.shared))
                               : ""));
}

}  // namespace

void add_pull(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<PullCommand>();
  CLI::App* command = program.add_subcommand("pull", "Fetch a model of the Hugging Face hub, and print its path");
  command
      ->add_option("name", options->name,
                   "hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE.gguf, each with @REVISION if wanted")
      ->required()
      ->type_name("NAME");
  command->add_option("--timeout", options->timeout, "Seconds without a byte, after which the connection is made anew")
      ->capture_default_str();
  command
      ->add_option("--tries", options->tries,
                   "Tries in a row that come less than 1 MiB further, after which it gives up")
      ->capture_default_str();
  command->add_option("--wait", options->wait, "Seconds before the second try; doubled before each further one")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = pull_model(*options); });
}

void add_models(CLI::App& program, Outcome& outcome) {
  struct Options {
    bool json = false;
    std::string name;
    bool partial = false;
    bool remove_json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("models", "List the models that are here: what to give -m");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  CLI::App* remove = command->add_subcommand("remove", "Remove a model of the hub's cache or of Kvasir's own folder");
  remove->add_option("name", options->name, "Its name, as 'kvasir models' lists it")->required()->type_name("NAME");
  remove->add_flag("--partial", options->partial, "Remove only what interrupted pulls of its repository have left");
  remove->add_flag("--json", options->remove_json, "One JSON object on standard output");
  remove->callback([options, &outcome] {
    outcome.status = remove_named(options->name, options->partial, options->json || options->remove_json);
  });
  command->callback([options, command, &outcome] {
    if (command->get_subcommands().empty()) outcome.status = list_models(options->json);
  });
}

}  // namespace kvasir::cli
