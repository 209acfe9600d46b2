// kvasir serve: the OpenAI API on one model or several.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/serve/model_size.h"
#include "cli/serve/serve_config.h"
#include "cli/serve/serve_models.h"
#include "cli/serve/serve_operations.h"
#include "cli/serve/set_plan.h"
#include "cli/signals.h"
#include "kvasir/version.h"
#include "server/admin/tenancy.h"
#include "server/http/http_server.h"
#include "server/http/local_gate.h"
#include "server/kv_events/kv_events.h"
#include "server/service.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::cli {
namespace {

struct ServeOptions {
  ModelSettings model;
  ModelSources sources;
  bool plan = false, json = false;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  int drain = 30;
  OperationsOptions operations;
  std::size_t queue = 1024;
  std::string sessions;
  server::ResponseStore::Limits responses;
  std::string redis_password_file;
  std::vector<std::string> origins;
  std::string api_keys;
  std::string usage_db;
  bool inspector = true;
  server::KvEventOptions events;
};

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Returns the first line of a file. Errors: as read_file; kInvalidArgument for an empty line.
Result<std::string> read_password(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(std::string text, read_file(path, 4096));
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  if (text.empty()) return invalid_argument("'{}' holds no password in its first line", printable(path, 200));
  return text;
}

// Returns the settings of models whose table gives no others.
Result<ModelSettings> common_settings(const ServeOptions& options) {
  ModelSettings common = options.model;
  if (options.redis_password_file.empty()) return common;
  Result<std::string> password = read_password(options.redis_password_file);
  if (!password.ok()) return Status(password.status()).about({"redis_password_file"});
  common.engine.redis_password = std::move(*password);
  return common;
}

// Loads the models that are wanted before the first request.
Result<std::vector<std::unique_ptr<Engine>>> preload(const ModelSet& set, server::Log& log) {
  std::vector<std::unique_ptr<Engine>> engines(set.models.size());
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const ModelSettings& settings = set.models[i].settings;
    if (!set.models[i].preload || !set.models[i].refusal.ok()) continue;
    {
      ProgressBar bar("loading");
      KVASIR_ASSIGN_OR_RETURN(engines[i], load_engine(settings, log, [&](std::uint64_t done, std::uint64_t total) {
                                bar.update(done >> 20, total >> 20, "MiB");
                              }));
    }
    note_slow_kernels(settings.engine.isa, engines[i]->model().isa);
  }
  return engines;
}

void log_arrival(server::Log& log, const server::HttpRequest& request) {
  if (log.writes(server::LogLevel::kDebug))
    log.write(server::LogLevel::kDebug, "http",
              {{"address", request.address}, {"method", request.method}, {"path", request.path}});
}

// Returns the KV memory of the model that has least.
std::uint64_t least_kv_memory(const ModelSet& set, const std::vector<std::unique_ptr<Engine>>& engines) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < engines.size(); ++i)
    if (set.models[i].refusal.ok())
      least = std::min(least, engines[i] != nullptr ? engines[i]->cache().budget : set.models[i].size.kv);
  return least;
}

// Returns what the desk is told of the models, of which some are loaded. `log` must outlive the engines.
std::vector<server::ModelEntry> entries_of(const ModelSet& set, const std::vector<std::unique_ptr<Engine>>& engines,
                                           server::Log& log, const std::function<void(Engine&)>& after_pass_of_first) {
  std::vector<server::ModelEntry> entries;
  for (std::size_t i = 0; i < set.models.size(); ++i) {
    server::ModelEntry& entry = entries.emplace_back(entry_of(set.models[i], log, i == 0 && !set.pinned_for.empty()));
    if (engines[i] != nullptr) entry.defaults.sampling = sampling_of(set.models[i].settings, engines[i]->model());
    if (i == 0) entry.after_pass = after_pass_of_first;
  }
  return entries;
}

std::int64_t longest_context(const server::ModelDesk& desk) {
  std::int64_t longest = 0;
  for (const server::ModelDesk::Info& model : desk.list()) longest = std::max(longest, model.summary.context);
  return longest;
}

std::vector<server::ModelFigures> figures_of(const server::ModelDesk& desk) {
  std::vector<server::ModelFigures> figures;
  for (const server::ModelDesk::Info& model : desk.list())
    figures.push_back({model.defaults.name, model.served != nullptr, model.loads, model.waiting,
                       model.served != nullptr ? model.served->steps.report() : server::StepReport()});
  return figures;
}

std::vector<std::string> names_of(const ModelSet& set) {
  std::vector<std::string> names;
  for (const ModelChoice& model : set.models) names.push_back(model.name);
  return names;
}

// Returns the option for which the default model is never unloaded; "" if it may be.
std::string pinned_for(const ServeOptions& options) {
  return !options.sessions.empty() ? "--sessions" : !options.events.endpoint.empty() ? "--kv-events" : "";
}

Status print_plan(const ServeOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const ModelSettings common, common_settings(options));
  KVASIR_ASSIGN_OR_RETURN(const ModelSet set, list_models(options.sources, common, pinned_for(options)));
  KVASIR_RETURN_IF_ERROR(check_planned(set));
  return options.json ? print_json(plan_json(set)) : print(plan_text(set));
}

Status serve(const ServeOptions& options) {
  if (options.api_keys.empty() && !is_loopback(options.host))
    return invalid_argument(
               "host={} is refused without API keys: make some with 'kvasir keys' and give --api-keys FILE, or give "
               "--host 127.0.0.1",
               options.host)
        .about({"host"});
  std::optional<server::SessionFolder> sessions;
  if (!options.sessions.empty()) {
    KVASIR_ASSIGN_OR_RETURN(server::SessionFolder folder, server::SessionStore(options.sessions, {}).prepare());
    sessions.emplace(std::move(folder));
  }
  KVASIR_ASSIGN_OR_RETURN(const ModelSettings common, common_settings(options));
  KVASIR_ASSIGN_OR_RETURN(ModelSet set, list_models(options.sources, common, pinned_for(options)));
  // Without a bound there is one model. If it is loaded at the start, loading it says what is wrong with it.
  if (set.memory == 0 && set.models.front().preload) set.models.front().refusal = {};
  KVASIR_RETURN_IF_ERROR(check_models(set));
  allow_descriptors(options.operations);
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<server::Log> log, open_log(options.operations));
  const auto say = [&](const std::string& line) {
    log->write(server::LogLevel::kWarning, "tenants", {{"message", line}});
  };
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<server::Tenancy> tenancy,
                          server::Tenancy::open({options.api_keys, options.usage_db, say}));
  KVASIR_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Engine>> engines, preload(set, *log));
  note_kv_memory(options.model.engine.kv_memory);
  const std::string& name = set.models.front().name;
  KVASIR_RETURN_IF_ERROR(tenancy->limit_floors(least_kv_memory(set, engines)));
  // REQUIRES of the events: they outlive the engine.
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<server::KvEvents> events, open_events(options.events, name));
  server::LocalGate local_gate(options.host, options.origins);
  server::Gate* gate = tenancy->gate();
  if (gate == nullptr) gate = &local_gate;
  std::optional<server::Service> service;
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<server::HttpServer> http,
                          server::HttpServer::open(
                              options.host, options.port, options.operations.limits,
                              [&](server::HttpRequest request, std::shared_ptr<server::HttpAnswer> answer) {
                                log_arrival(*log, request);
                                service->handle(std::move(request), std::move(answer));
                              },
                              [&](const server::HttpRequest& request, server::HttpAnswer& answer) {
                                return service->admit(request, answer);
                              }));
  const auto post = [&](std::function<void()> function) { http->post(std::move(function)); };
  server::ModelDesk::Options desk_options;
  desk_options.post = post;
  desk_options.queue = options.queue;
  desk_options.memory = set.memory;
  desk_options.queue_timeout = options.operations.queue_timeout;
  desk_options.log = [&](const std::string& model, std::string_view event, const std::string& why) {
    const std::string name_of_event = fmt::format("model_{}", event);
    if (why.empty()) return log->write(server::LogLevel::kInfo, name_of_event, {{"model", model}});
    log->write(server::LogLevel::kWarning, name_of_event, {{"model", model}, {"message", why}});
  };
  desk_options.prepare = [&](std::size_t model, Engine& engine) {
    if (model == 0) engine.set_prefix_listener(events.get());
    return tenancy->set_quotas(engine);
  };
  std::function<void(Engine&)> after_pass;  // of the first model
  if (events != nullptr) after_pass = [&](Engine& engine) { events->end_pass(engine); };
  const auto desk =
      std::make_unique<server::ModelDesk>(entries_of(set, engines, *log, after_pass), std::move(desk_options));
  for (std::size_t i = 0; i < engines.size(); ++i)
    if (engines[i] != nullptr) KVASIR_RETURN_IF_ERROR(desk->install(i, std::move(engines[i])));
  server::TextThread texts({post, options.queue});
  server::TextThread grammars({.post = post, .jobs = options.queue, .threads = 2});
  service.emplace(*desk, texts, grammars,
                  server::ServiceOptions{options.origins,
                                         gate,
                                         options.sessions,
                                         {},
                                         options.inspector,
                                         options.operations.queue_timeout,
                                         kVersion,
                                         options.responses});
  tenancy->join(*service, *desk, *http);
  server::RequestLog request_log(*log);
  const std::unique_ptr<server::Metrics> metrics =
      server::Metrics::make({.models = names_of(set),
                             .version = kVersion,
                             .context = longest_context(*desk),
                             .vllm = options.operations.vllm_metrics,
                             .open = options.operations.metrics_open},
                            {.models = [&] { return figures_of(*desk); },
                             .busy = [&] { return desk->busy(); },
                             .connections = [&] { return http->connections(); },
                             .dropped_log_lines = [&] { return log->dropped(); },
                             .tenants = [&] { return tenancy->names(); }});
  service->traffic().add(&request_log);
  service->traffic().add(metrics.get());
  metrics->add_route(service->router());
  http->every(server::Service::kTick, [&] { service->tick(); });
  http->every(server::ModelDesk::kTick, [&] { desk->tick(); });
  catch_interrupts();
  catch_hang_up(options.operations);
  bool drains = false;
  std::map<std::string, SwapWatch> swaps;
  http->every(std::chrono::milliseconds(100), [&] {
    if (events != nullptr && events->wants_pass()) {
      // If the queue is full, a pass follows anyway.
      if (const server::ModelLease model = desk->look(); model) {
        [[maybe_unused]] const Status full = model->steps.ask([](Engine&) {});
      }
    }
    if (hung_up()) log->reopen();
    for (const server::ModelDesk::Info& model : desk->list())
      if (model.served != nullptr) swaps[model.defaults.name].look(model.served->steps.report().engine.swap, *log);
    if (!interrupted() || drains) return;
    drains = true;
    service->begin_drain();
    notify_manager("STOPPING=1");
    log->write(server::LogLevel::kInfo, "draining", {{"deadline_s", options.drain}});
    if (interrupting_signal() == SIGINT && options.drain > 0)
      note("kvasir: answers under way have {} s to end; Ctrl-C again ends at once\n", options.drain);
    http->drain(std::chrono::seconds(options.drain), [&] { service->cut_off(); });
  });
  const std::string shown = options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]";
  const std::uint64_t kv_bytes = desk->list().front().size.kv;
  note("kvasir: serving {}{} on http://{}:{}, KV memory {}\n", printable(name, 200),
       set.models.size() > 1 ? fmt::format(" and {} more", set.models.size() - 1) : "", shown, http->port(),
       human_bytes(kv_bytes));
  if (tenancy->gate() == nullptr) note("kvasir: without API keys, so for this machine alone\n");
  log->write(server::LogLevel::kInfo, "serving",
             {{"model", name},
              {"host", options.host},
              {"port", http->port()},
              {"kv_bytes", std::int64_t(kv_bytes)},
              {"policy", options.model.policy}});
  notify_manager("READY=1");
  http->run();
  log->write(server::LogLevel::kInfo, "ended");
  // The other threads end first, because they post to this one. Then posted functions are dropped while the objects
  // that they refer to still exist.
  for (server::TextThread* each : {&texts, &grammars}) each->stop();
  service->stop();
  desk->stop();
  tenancy->leave();
  http.reset();
  service.reset();
  return {};
}

void add_scheduler_options(CLI::App& command, SchedulerOptions& options) {
  command
      .add_option("--max-itl", options.max_itl,
                  "Seconds between two tokens of an answer that prompts of others may take at most; 0: no bound")
      ->capture_default_str();
  command
      .add_option("--stop-mark", options.stop_mark,
                  "Share of the KV memory below which usage and a request's peak must stay for it to start")
      ->capture_default_str();
  command
      .add_option("--preempt-mark", options.preempt_mark,
                  "Share of the KV memory up to which requests grow before one of them gives up its pages")
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--admission",
          [&options](const std::string& name) {
            options.admission = name == "reserve" ? Admission::kReserve : Admission::kUse;
          },
          "use: by what is in use now; reserve: by the peaks of all that run, which preempts nobody")
      ->check(CLI::IsMember({"use", "reserve"}))
      ->default_str("use");
}

// Adds the options of prefixes outside memory.
void add_prefix_options(CLI::App& command, ServeOptions& options) {
  CLI::Option* folder = command
                            .add_option("--prefix-dir", options.model.engine.prefix_dir,
                                        "Folder in which beginnings of texts outlive the server; default: none")
                            ->type_name("FOLDER");
  add_bytes_option(command, "--prefix-disk", options.model.engine.prefix_disk,
                   "Most bytes of that folder; default: 10GiB")
      ->needs(folder);
  CLI::Option* redis =
      command
          .add_option("--redis", options.model.engine.redis,
                      "Redis server through which servers of the same model share beginnings of "
                      "texts; default: none")
          ->type_name("HOST:PORT")
          ->check(CLI::Validator(
              [](std::string& text) {
                return text.empty() ? "a Redis server has an address, HOST:PORT; omit --redis to have none" : "";
              },
              ""));
  command
      .add_option("--redis-password-file", options.redis_password_file, "File that holds the password of that server")
      ->type_name("FILE")
      ->needs(redis);
  command.add_option("--redis-ttl", options.model.engine.redis_ttl, "Seconds that it keeps them; default: 86400")
      ->check(in_range(1, 365 * 24 * 3600))
      ->needs(redis);
}

}  // namespace

void add_serve(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = program.add_subcommand("serve", "Serve the OpenAI API to many clients at once");
  add_config_option(*command, options->sources.tables);
  options->model.engine.kv_type = "auto";
  add_engine_options(*command, options->model.engine);
  add_model_sources(*command, options->sources);
  command
      ->add_option("--kv-types", options->model.kv_types,
                   "Values of --kv-type that requests may ask for beside it, for example q8,q4; default: none")
      ->type_name("TYPES")
      ->take_all()
      ->allow_extra_args(false);
  add_kv_memory_option(*command, options->model.engine);
  options->model.engine.prefix_memory = std::numeric_limits<std::uint64_t>::max();
  add_bytes_option(*command, "--prefix-memory", options->model.engine.prefix_memory,
                   "Part of the KV memory in which beginnings of texts are kept for others that begin alike; 0: none; "
                   "default: whatever requests leave free");
  CLI::Option* swap_dir =
      command
          ->add_option(
              "--swap-dir", options->model.engine.swap_dir,
              "Folder for a file that takes the pages of preempted requests where that is faster than to compute "
              "them again; default: none")
          ->type_name("FOLDER");
  add_bytes_option(*command, "--swap-size", options->model.engine.swap_size, "Most bytes of that file; default: 4GiB")
      ->needs(swap_dir);
  add_prefix_options(*command, *options);
  add_chunk_option(*command, options->model.engine);
  add_chat_template_option(*command, options->model.chat_template);
  add_template_arg_option(*command, options->model.engine.template_arguments);
  add_policy_option(*command, options->model.policy,
                    "Retention policy of requests that name none (see 'kvasir policies')")
      ->envname("KVASIR_KV")
      ->capture_default_str();
  add_demote_options(*command, options->model.demote, options->model.engine);
  command
      ->add_option("--temp", options->model.temperature,
                   "Temperature of requests that give none; default: the model's own, else 0.8")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-p", options->model.top_p, "Their top_p; default: the model's own, else 0.95")
      ->check(CLI::Range(1e-6, 1.0));
  command->add_option("--min-p", options->model.min_p, "Their min_p; default: the model's own, else 0.05")
      ->check(CLI::Range(0.0, 1.0));
  add_draft_option(*command, options->model.draft, options->model.engine.draft_model);
  add_draft_model_option(*command, options->model.engine.draft_model);
  add_pooling_option(*command, options->model.engine);
  command->add_option("--host", options->host, "Address to listen on")->capture_default_str();
  command->add_option("--port", options->port, "Port; 0: any that is free")
      ->check(in_range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--cors", options->origins,
                   "Origin of pages whose scripts may use the server, such as https://chat.example.com; *: all; may be "
                   "repeated; pages of this machine always may")
      ->type_name("ORIGIN")
      ->transform(CLI::Validator(
          [](std::string& origin) -> std::string {
            for (char& c : origin)
              if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
            const std::size_t host = origin.starts_with("https://") ? 8 : origin.starts_with("http://") ? 7 : 0;
            const bool fits = host > 0 && origin.size() > host && origin.find('/', host) == std::string::npos;
            return fits || origin == "*" ? "" : "an origin is https://HOST or http://HOST:PORT without a path, or *";
          },
          ""))
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--name", options->sources.name, "Name of the model for clients; default: that of the file")
      ->type_name("NAME");
  command->add_option("--api-keys", options->api_keys, "Keys and tenants, see 'kvasir keys'; requests need a key then")
      ->type_name("FILE");
  command->add_option("--usage-db", options->usage_db, "SQLite database of what tenants use, see 'kvasir usage'")
      ->type_name("FILE");
  command
      ->add_option("--max-batch", options->model.batch,
                   "Requests side by side for which the KV memory is sized or, where it is given, shared out, 1 to 64")
      ->check(in_range(1, 64))
      ->capture_default_str();
  add_scheduler_options(*command, options->model.engine.scheduler);
  command
      ->add_option("--queue", options->queue,
                   "Requests that may wait: to be taken, or for KV memory; more are answered with 429")
      ->check(in_range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--sessions", options->sessions, "Folder of saved sessions; without one there are none")
      ->type_name("FOLDER");
  add_bytes_option(*command, "--response-memory", options->responses.tenant,
                   "Bytes for the answers of /v1/responses that one tenant can continue; 0: none; default: 16MiB");
  command->add_option("--drain", options->drain, "Seconds that answers under way have when the server goes down")
      ->check(in_range(0, 24 * 3600))
      ->capture_default_str();
  command
      ->add_flag("--inspector,!--no-inspector", options->inspector,
                 "Serve the Inspector: a page at / that chats and shows the KV cache; default: yes")
      ->default_str("true");
  command
      ->add_option("--kv-events", options->events.endpoint,
                   "Publish over ZeroMQ which beginnings of texts are held, for routers; for example "
                   "tcp://127.0.0.1:5557")
      ->type_name("ENDPOINT");
  command
      ->add_option("--kv-events-replay", options->events.replay,
                   "Where routers ask again for events they lost; for example tcp://127.0.0.1:5558")
      ->type_name("ENDPOINT");
  command->add_option("--kv-events-topic", options->events.topic, "Topic of events; default: kv@HOST@MODEL");
  add_operations_options(*command, options->operations);
  CLI::Option* plan =
      command->add_flag("--plan", options->plan, "Print what each model takes and which fit together, and end")
          ->configurable(false);
  command->add_flag("--json", options->json, "With --plan: one JSON object on standard output")
      ->configurable(false)
      ->needs(plan);
  add_print_config_option(*command, &options->sources.tables);
  // Options that most servers need stay in the first group.
  const std::pair<const char*, std::vector<const char*>> groups[] = {
      {"Model and KV pages",
       {"--isa", "--kv-type", "--kv-types", "--page", "--prefix-memory", "--swap-dir", "--swap-size", "--demote",
        "--demote-dir", "--demote-size", "--prefix-dir", "--prefix-disk", "--redis", "--redis-password-file",
        "--redis-ttl", "--chunk", "--chat-template", "--template-arg"}},
      {"Scheduling",
       {"--max-batch", "--draft", "--draft-model", "--max-itl", "--stop-mark", "--preempt-mark", "--admission",
        "--queue", "--queue-timeout"}},
      {"KV events", {"--kv-events", "--kv-events-replay", "--kv-events-topic"}}};
  for (const auto& [group, members] : groups)
    for (const char* option : members) command->get_option(option)->group(group);
  command->callback([options, command, &outcome] {
    options->operations.quiet = command->count("--quiet") > 0;
    const CLI::Option* model = command->get_option("--model");
    options->sources.typed = model->count() > 0 ? model->results().back() : options->model.engine.model;
    options->sources.offline = command->get_option("--offline")->as<bool>();
    outcome.status = options->plan ? print_plan(*options) : serve(*options);
  });
}

}  // namespace kvasir::cli
