#include "server/models/model_desk.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/status.h"

namespace kvasir::server {
namespace {

constexpr std::size_t kMostNamed = 20;  // models in a message

Status no_memory_to_load() {
  return make_status(StatusCode::kIo, "the system has no memory left for it");
}

}  // namespace

std::string_view name_of(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded: return "unloaded";
    case ModelState::kLoading: return "loading";
    case ModelState::kLoaded: return "loaded";
    case ModelState::kUnloading: return "unloading";
    case ModelState::kFailed: return "failed";
  }
  return "";
}

ErrorText error_of_model(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound: return {404, status.message(), "model_not_found", "model"};
    case StatusCode::kResourceExhausted: return {429, status.message(), "queue_full", {}};
    case StatusCode::kCancelled: return {503, status.message(), "queue_timeout", {}};
    case StatusCode::kInvalidArgument: return {400, status.message(), "model_unavailable", "model"};
    default: return {503, status.message(), "model_unavailable", "model"};
  }
}

ModelLease& ModelLease::operator=(ModelLease&& other) noexcept {
  if (this == &other) return *this;
  reset();
  desk_ = std::exchange(other.desk_, nullptr);
  model_ = other.model_;
  served_ = std::exchange(other.served_, nullptr);
  return *this;
}

void ModelLease::reset() {
  served_ = nullptr;
  if (ModelDesk* desk = std::exchange(desk_, nullptr); desk != nullptr) desk->give_back(model_);
}

ModelDesk::ModelDesk(std::vector<ModelEntry> entries, Options options)
    : options_(std::move(options)), worker_({options_.post}) {
  std::uint64_t pinned = 0;
  for (const ModelEntry& entry : entries)
    if (entry.pinned && entry.refusal.ok()) pinned += entry.size.total();
  for (ModelEntry& entry : entries) {
    auto& made = models_.emplace_back(std::make_unique<Model>());
    made->index = models_.size() - 1;
    made->entry = std::move(entry);
    const ModelEntry& one = made->entry;
    const std::uint64_t beside = one.pinned ? pinned - std::min(pinned, one.size.total()) : pinned;
    if (one.refusal.ok() && options_.memory > 0 && one.size.total() + beside > options_.memory)
      made->entry.refusal =
          invalid_argument("it needs {} bytes of memory, and {} are left beside the models that stay loaded",
                           one.size.total(), options_.memory - std::min(options_.memory, beside));
    if (!one.refusal.ok()) {
      made->state = ModelState::kFailed;
      made->failure = one.refusal;
    }
  }
}

ModelDesk::~ModelDesk() {
  stop();
}

void ModelDesk::stop() {
  stopped_ = true;
  worker_.stop();
  for (const auto& model : models_)
    if (model->served != nullptr) model->served->steps.stop();
}

Status ModelDesk::install(std::size_t model, std::unique_ptr<Engine> engine) {
  return begin_serving(*models_[model], std::move(engine));
}

ModelDesk::Model* ModelDesk::find_model(std::string_view name) const {
  if (name.empty()) return models_.front().get();
  // A model of ollama has a tag, which its clients may omit.
  for (const std::string& wanted : {std::string(name), std::string(name) + ":latest"})
    for (const auto& model : models_)
      if (model->entry.defaults.name == wanted) return model.get();
  return nullptr;
}

Status ModelDesk::unknown(std::string_view name) const {
  std::string there;
  for (std::size_t i = 0; i < models_.size() && i < kMostNamed; ++i)
    there += fmt::format("{}'{}'", i == 0 ? "" : ", ", models_[i]->entry.defaults.name);
  if (models_.size() > kMostNamed) there += fmt::format(" and {} more", models_.size() - kMostNamed);
  return make_status(StatusCode::kNotFound, "there is no model '{}' here; there {} {}", name.substr(0, 200),
                     models_.size() == 1 ? "is" : "are", there)
      .about({"model"});
}

ModelDesk::WaitId ModelDesk::ask(std::string_view name, int tenant, Answer answer) {
  Model* model = find_model(name);
  if (model == nullptr) {
    answer(unknown(name));
    return 0;
  }
  const auto now = Clock::now();
  if (!model->entry.refusal.ok()) {
    answer(
        invalid_argument("the model '{}' cannot be loaded: {}", model->entry.defaults.name, model->failure.message()));
    return 0;
  }
  if (model->state == ModelState::kFailed && now - model->since < options_.retry) {
    answer(make_status(StatusCode::kIo, "the model '{}' could not be loaded: {}", model->entry.defaults.name,
                       model->failure.message()));
    return 0;
  }
  model->used = now;
  if (model->state == ModelState::kLoaded && !model->closed && model->waiters.empty()) {
    answer(lend(*model));
    return 0;
  }
  if (const Status full = check_queue(*model, tenant); !full.ok()) {
    answer(full);
    return 0;
  }
  const WaitId id = next_++;
  model->waiters.push_back({id, tenant, now, std::move(answer)});
  pump();
  return id;
}

Status ModelDesk::check_queue(const Model& model, int tenant) const {
  const std::size_t waiting = model.waiters.size();
  if (waiting >= options_.queue)
    return exhausted("{} requests wait for the model '{}' already; try again later", waiting,
                     model.entry.defaults.name);
  const auto own = std::ranges::count(model.waiters, tenant, &Waiter::tenant);
  if (tenant == 0 || own == 0 || static_cast<std::size_t>(own) < options_.queue - waiting) return {};
  return exhausted("too many requests of this tenant wait for the model '{}' already; try again later",
                   model.entry.defaults.name);
}

void ModelDesk::forget(WaitId id) {
  if (id == 0) return;
  for (const auto& model : models_)
    std::erase_if(model->waiters, [&](const Waiter& waiter) { return waiter.id == id; });
}

void ModelDesk::tick() {
  const auto latest = Clock::now() - options_.queue_timeout;
  if (options_.queue_timeout.count() > 0)
    for (const auto& model : models_)
      while (!model->waiters.empty() && model->waiters.front().since < latest) {
        const Answer answer = std::move(model->waiters.front().answer);
        model->waiters.pop_front();
        answer(make_status(StatusCode::kCancelled, "the model '{}' was not loaded within {} s; try again later",
                           model->entry.defaults.name, options_.queue_timeout.count()));
      }
  pump();
}

ModelLease ModelDesk::look(std::string_view name) {
  Model* const model = find_model(name);
  return model != nullptr && model->state == ModelState::kLoaded ? lend(*model) : ModelLease();
}

ModelLease ModelDesk::lend(Model& model) {
  ++model.leases;
  return {*this, model.index, *model.served};
}

void ModelDesk::give_back(std::size_t model) {
  if (--models_[model]->leases > 0) return;
  models_[model]->idle = Clock::now();
  pump();
}

ModelDesk::Info ModelDesk::info_of(const Model& model) {
  return {model.entry.defaults,
          model.state,
          model.state == ModelState::kFailed ? model.failure.message() : std::string(),
          model.entry.size,
          model.entry.summary,
          model.state == ModelState::kLoaded ? model.served.get() : nullptr,
          model.state == ModelState::kLoaded && !model.closed,
          model.leases,
          std::ssize(model.waiters),
          model.loads};
}

std::vector<ModelDesk::Info> ModelDesk::list() const {
  std::vector<Info> list;
  for (const auto& model : models_) list.push_back(info_of(*model));
  return list;
}

std::optional<ModelDesk::Info> ModelDesk::find(std::string_view name) const {
  const Model* model = find_model(name);
  return model == nullptr ? std::nullopt : std::optional<Info>(info_of(*model));
}

ModelDesk::Clock::duration ModelDesk::busy() const {
  Clock::duration longest{};
  for (const auto& model : models_)
    if (model->served != nullptr) longest = std::max(longest, model->served->steps.busy());
  return longest;
}

// Does all that can be done now. Answers may ask for models and give leases back: then it goes round once more.
void ModelDesk::pump() {
  again_ = true;
  if (pumping_ || stopped_) return;
  pumping_ = true;
  const std::shared_ptr<void> ends(nullptr, [this](void*) { pumping_ = false; });  // also where an answer throws
  while (std::exchange(again_, false)) {
    for (const auto& model : models_) answer_waiters(*model);
    if (!working_) start_job();
  }
}

void ModelDesk::answer_waiters(Model& model) {
  while (model.state == ModelState::kLoaded && !model.closed && !model.waiters.empty()) {
    const Answer answer = std::move(model.waiters.front().answer);
    model.waiters.pop_front();
    answer(lend(model));
  }
}

// Returns the model that is not loaded whose first request has waited longest.
ModelDesk::Model* ModelDesk::longest_waiting() const {
  Model* longest = nullptr;
  for (const auto& model : models_) {
    if (model->state == ModelState::kLoaded || model->waiters.empty()) continue;
    if (longest == nullptr || model->waiters.front().since < longest->waiters.front().since) longest = model.get();
  }
  return longest;
}

// Returns whether a model fits beside those that are loaded, less `freed` bytes. REQUIRES: none is being loaded or
// unloaded.
bool ModelDesk::fits(const Model& model, std::uint64_t freed) const {
  std::uint64_t taken = 0;
  for (const auto& other : models_)
    if (other->state == ModelState::kLoaded) taken += other->entry.size.total();
  return options_.memory == 0 || taken - freed + model.entry.size.total() <= options_.memory;
}

// Loads or unloads the next model, if one is due.
void ModelDesk::start_job() {
  Model* const wanted = longest_waiting();
  const bool closes = wanted != nullptr && Clock::now() - wanted->waiters.front().since >= options_.patience;
  bool reopened = false;
  const auto reopen = [&] {
    for (const auto& model : models_) reopened |= std::exchange(model->closed, false) && !model->waiters.empty();
    again_ |= reopened;
  };
  if (wanted == nullptr) return reopen();
  if (fits(*wanted, 0)) {
    reopen();
    return load(*wanted);
  }
  if (make_room(*wanted, closes) || closes) return;
  // Another model that fits without an exchange need not wait for this one.
  for (const auto& model : models_)
    if (model->state != ModelState::kLoaded && !model->waiters.empty() && fits(*model, 0)) return load(*model);
}

// Unloads a model that nobody uses if that helps to make room. Otherwise, if `close_busy`, closes those in use that are
// in the way. Returns whether it has unloaded one.
bool ModelDesk::make_room(const Model& wanted, bool close_busy) {
  const auto now = Clock::now();
  std::vector<Model*> idle, busy;
  for (const auto& model : models_) {
    if (model->state != ModelState::kLoaded || model->entry.pinned) continue;
    const bool waits = now - model->idle < options_.grace;
    (model->leases == 0 && (model->closed || !waits) ? idle : busy).push_back(model.get());
  }
  std::ranges::sort(idle, {}, [](const Model* model) { return model->used; });
  std::uint64_t freed = 0;
  std::vector<Model*> chosen;  // the oldest that make room together
  for (Model* model : idle) {
    if (fits(wanted, freed)) break;
    chosen.push_back(model);
    freed += model->entry.size.total();
  }
  // Those without which there is room too stay, first the one that was asked for last.
  const auto drop_unneeded = [&] {
    for (std::size_t i = chosen.size(); i-- > 0;) {
      const std::uint64_t without = freed - chosen[i]->entry.size.total();
      if (!fits(wanted, without)) continue;
      freed = without;
      chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
    }
  };
  if (fits(wanted, freed)) {
    drop_unneeded();
    unload(*chosen.front());
    return true;
  }
  if (!close_busy) return false;
  std::ranges::sort(busy, {}, [](const Model* model) { return model->since; });
  for (Model* model : busy) {
    if (now - model->since < options_.patience) return false;  // each gets its time
    model->closed = true;
    freed += model->entry.size.total();
    if (fits(wanted, freed)) break;
  }
  drop_unneeded();
  for (Model* model : chosen) model->closed = true;  // they have to go too
  return false;
}

void ModelDesk::load(Model& model) {
  working_ = true;
  model.state = ModelState::kLoading;
  log(model, "loading");
  const auto result = std::make_shared<std::optional<Result<std::unique_ptr<Engine>>>>();
  const Status queued = worker_.run(
      1, [result, load = &model.entry.load] { result->emplace((*load)()); },
      [this, result, &model] {
        working_ = false;
        loaded(model, *result ? std::move(**result) : Result<std::unique_ptr<Engine>>(no_memory_to_load()));
      });
  if (queued.ok()) return;
  working_ = false;
  fail(model, queued);
}

void ModelDesk::loaded(Model& model, Result<std::unique_ptr<Engine>> engine) {
  Status status = engine.status();
  try {
    if (engine.ok()) status = begin_serving(model, std::move(*engine));
  } catch (const std::exception&) {  // the system refuses memory or a thread
    status = no_memory_to_load();
  }
  status.ok() ? log(model, "loaded") : fail(model, status);
  pump();
}

Status ModelDesk::begin_serving(Model& model, std::unique_ptr<Engine> engine) {
  if (options_.prepare) KVASIR_RETURN_IF_ERROR(options_.prepare(model.index, *engine));
  model.entry.size.weights = engine->model().weight_bytes + engine->model().draft_weight_bytes;
  for (const AdapterSummary& adapter : engine->model().adapters) model.entry.size.weights += adapter.bytes;
  model.entry.size.kv = engine->cache().budget;
  model.served = std::make_unique<Served>(std::move(engine), model.entry.defaults,
                                          StepThread::Options{options_.post, options_.queue, model.entry.after_pass});
  model.entry.summary = model.served->steps.model();
  model.state = ModelState::kLoaded;
  model.since = model.used = model.idle = Clock::now();
  ++model.loads;
  return {};
}

// Refuses all that wait for the model.
void ModelDesk::fail(Model& model, const Status& why) {
  model.state = ModelState::kFailed;
  model.since = Clock::now();
  model.failure = why;
  log(model, "failed", why.message());
  for (const Waiter& waiter : std::exchange(model.waiters, {}))
    waiter.answer(make_status(StatusCode::kIo, "the model '{}' could not be loaded: {}", model.entry.defaults.name,
                              why.message()));
}

void ModelDesk::unload(Model& model) {
  working_ = true;
  model.state = ModelState::kUnloading;
  model.closed = false;
  log(model, "unloading");
  const auto served = std::make_shared<std::unique_ptr<Served>>(std::move(model.served));
  const auto gone = [this, &model] {
    working_ = false;
    model.state = ModelState::kUnloaded;
    log(model, "unloaded");
    pump();
  };
  const auto destroy = [served] {
    served->reset();
    ::malloc_trim(0);  // the next model needs the memory
  };
  const Status queued = worker_.run(1, destroy, gone);
  if (queued.ok()) return;
  model.served = std::move(*served);
  model.state = ModelState::kLoaded;
  working_ = false;
}

void ModelDesk::log(const Model& model, std::string_view event, const std::string& why) const {
  if (options_.log) options_.log(model.entry.defaults.name, event, why);
}

}  // namespace kvasir::server
