// kvasir serve: the OpenAI API on one model.
#include <fmt/core.h>

#include <csignal>
#include <optional>

#include "base/status.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/serve_config.h"
#include "cli/serve_operations.h"
#include "kvasir/version.h"
#include "server/http_server.h"
#include "server/service.h"
#include "server/step_thread.h"

namespace kvasir::cli {
namespace {

struct ServeOptions {
  EngineOptions engine;
  std::string chat_template;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  std::string name;
  std::string policy;
  int batch = 16;
  int drain = 30;
  std::size_t queue = 1024;
  OperationsOptions operations;
};

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Returns the file's name without folder and ending.
std::string name_of(const std::string& path) {
  const std::string file = path.substr(path.rfind('/') + 1);
  return file.ends_with(".gguf") ? file.substr(0, file.size() - 5) : file;
}

Result<std::unique_ptr<Engine>> open_engine(const ServeOptions& options) {
  EngineOptions engine_options = options.engine;
  KVASIR_ASSIGN_OR_RETURN(engine_options.chat_template, read_chat_template(options.chat_template));
  std::unique_ptr<Engine> engine;
  {
    ProgressBar bar("loading");
    KVASIR_ASSIGN_OR_RETURN(engine, Engine::open(engine_options, [&](std::uint64_t done, std::uint64_t total) {
                              bar.update(done >> 20, total >> 20, "MiB");
                            }));
  }
  note_kv_memory(options.engine.kv_memory);
  note_slow_kernels(options.engine.isa, engine->model().isa);
  // Sizes the cache, for as many requests side by side; it stays when the session goes.
  KVASIR_RETURN_IF_ERROR(engine->new_session({.policy = options.policy, .sequences = options.batch}).status());
  return engine;
}

void log_arrival(server::Log& log, const server::HttpRequest& request) {
  if (log.writes(server::LogLevel::kDebug))
    log.write(server::LogLevel::kDebug, "http",
              {{"address", request.address}, {"method", request.method}, {"path", request.path}});
}

Status serve(const ServeOptions& options) {
  if (!is_loopback(options.host))
    return invalid_argument(
        "there are no API keys, so the server binds to this machine alone; give --host 127.0.0.1 and put a proxy in "
        "front of it");
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<server::Log> log, open_log(options.operations));
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, open_engine(options));
  const std::string name = options.name.empty() ? name_of(options.engine.model) : options.name;
  const std::uint64_t budget = engine->cache().budget;
  std::optional<server::Service> service;
  KVASIR_ASSIGN_OR_RETURN(
      std::unique_ptr<server::HttpServer> http,
      server::HttpServer::open(options.host, options.port, options.operations.limits,
                               [&](server::HttpRequest request, std::shared_ptr<server::HttpAnswer> answer) {
                                 log_arrival(*log, request);
                                 service->handle(std::move(request), std::move(answer));
                               }));
  server::StepThread steps(std::move(engine),
                           {[&](std::function<void()> function) { http->post(std::move(function)); }, options.queue});
  service.emplace(steps, server::ServiceOptions{name, options.policy, nullptr, options.operations.queue_timeout});
  server::RequestLog request_log(*log);
  const std::unique_ptr<server::Metrics> metrics =
      server::Metrics::make({.model = name,
                             .version = kVersion,
                             .context = steps.model().context,
                             .vllm = options.operations.vllm_metrics,
                             .open = options.operations.metrics_open},
                            {.steps = [&] { return steps.report(); },
                             .busy = [&] { return steps.busy(); },
                             .connections = [&] { return http->connections(); },
                             .dropped_log_lines = [&] { return log->dropped(); }});
  service->traffic().add(&request_log);
  service->traffic().add(metrics.get());
  metrics->add_route(service->router());
  http->every(std::chrono::milliseconds(250), [&] { service->end_long_waits(); });
  catch_interrupts();
  catch_hang_up(options.operations);
  bool drains = false;
  http->every(std::chrono::milliseconds(100), [&] {
    if (hung_up()) log->reopen();
    if (!interrupted() || drains) return;
    drains = true;
    service->begin_drain();
    notify_manager("STOPPING=1");
    log->write(server::LogLevel::kInfo, "draining", {{"deadline_s", options.drain}});
    http->drain(std::chrono::seconds(options.drain));
  });
  const std::string shown = options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]";
  note("kvasir: serving {} on http://{}:{}, KV memory {}\n", printable(name, 200), shown, http->port(),
       human_bytes(budget));
  log->write(server::LogLevel::kInfo, "serving",
             {{"model", name}, {"host", options.host}, {"port", http->port()}, {"kv_bytes", std::int64_t(budget)}});
  notify_manager("READY=1");
  http->run();
  log->write(server::LogLevel::kInfo, "ended");
  return {};
}

}  // namespace

void add_serve(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = program.add_subcommand("serve", "Serve the OpenAI API to many clients at once");
  add_config_option(*command);
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  add_chunk_option(*command, options->engine);
  add_chat_template_option(*command, options->chat_template);
  add_template_arg_option(*command, options->engine.template_arguments);
  add_policy_option(*command, options->policy, "Retention policy of requests that name none (see 'kvasir policies')")
      ->envname("KVASIR_KV");
  command->add_option("--host", options->host, "Address to listen on")->capture_default_str();
  command->add_option("--port", options->port, "Port; 0: any that is free")->capture_default_str();
  command->add_option("--name", options->name, "Name of the model for clients; default: that of the file");
  command->add_option("--max-batch", options->batch, "Requests side by side for which the KV memory is sized, 1 to 64")
      ->capture_default_str();
  command->add_option("--queue", options->queue, "Requests that may wait; more are answered with 429")
      ->capture_default_str();
  command->add_option("--drain", options->drain, "Seconds that answers under way have when the server goes down")
      ->capture_default_str();
  add_operations_options(*command, options->operations);
  add_print_config_option(*command);
  command->callback([options, command, &outcome] {
    options->operations.quiet = command->count("--quiet") > 0;
    outcome.status = serve(*options);
  });
}

}  // namespace kvasir::cli
