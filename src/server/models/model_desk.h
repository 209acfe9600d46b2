// The models of a server: which are loaded, which requests wait for which, and which makes room for another.
//
// A request asks for a model by its name and gets a lease once the model is loaded. Models are loaded when they are
// first asked for, one at a time, by a thread of the desk. All that are loaded stay within one bound of memory. To load
// one more, the desk unloads models that no lease holds, the one that was asked for longest ago first, and only those
// that are needed to make room. A model that a lease holds is never unloaded. One whose last lease has just ended stays
// for Options::grace: its clients often ask again.
//
// No model starves. Once the request that has waited longest for an unloaded model has waited for Options::patience,
// the models in its way give no further leases. They are unloaded when the last lease has ended. A model is not closed
// so within the same time from when it was loaded; one that nobody uses may be unloaded sooner.
//
// Thread-safety: the I/O thread's alone; callbacks are called there, except where they say otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"
#include "server/http/error_text.h"
#include "server/models/served.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

// Bytes that a loaded model takes.
struct ModelSize {
  std::uint64_t weights = 0;    // with those of adapters and of a draft model
  std::uint64_t kv = 0;         // the whole KV memory, used or not
  std::uint64_t workspace = 0;  // of forward passes, about

  std::uint64_t total() const { return weights + kv + workspace; }
};

// A model that the server may load.
struct ModelEntry {
  ServedDefaults defaults;  // no two have the same name
  ModelSize size;
  // As far as the file's header tells while the model is not loaded: name, architecture, context, vocabulary and
  // weight_bytes.
  ModelSummary summary;
  Status refusal = {};  // why it can never be loaded; ok if it may be
  // Loads the model. Called on the desk's thread.
  std::function<Result<std::unique_ptr<Engine>>()> load = {};
  bool pinned = false;                           // never unloaded once it is loaded
  std::function<void(Engine&)> after_pass = {};  // see StepThread::Options
};

enum class ModelState { kUnloaded, kLoading, kLoaded, kUnloading, kFailed };
std::string_view name_of(ModelState state);

class ModelDesk;

// Keeps a model loaded while it lives. The desk must outlive it.
class ModelLease {
 public:
  ModelLease() = default;
  ModelLease(ModelLease&& other) noexcept { *this = std::move(other); }
  ModelLease& operator=(ModelLease&& other) noexcept;
  ~ModelLease() { reset(); }

  explicit operator bool() const { return desk_ != nullptr; }
  Served& operator*() const { return *served_; }
  Served* operator->() const { return served_; }
  void reset();

 private:
  friend class ModelDesk;
  ModelLease(ModelDesk& desk, std::size_t model, Served& served) : desk_(&desk), model_(model), served_(&served) {}

  ModelDesk* desk_ = nullptr;
  std::size_t model_ = 0;
  Served* served_ = nullptr;
};

class ModelDesk {
 public:
  struct Options {
    Post post;  // to the I/O thread
    // See StepThread::Options. As many requests may wait for one model, by the same rules.
    std::size_t queue = 1024;
    std::uint64_t memory = 0;  // most bytes of all loaded models; 0: no bound
    std::chrono::milliseconds patience{2000};
    std::chrono::milliseconds grace{100};
    std::chrono::seconds queue_timeout{0};   // after which a request that waits is refused; 0: never
    std::chrono::milliseconds retry{10000};  // from a failure to load until the next try
    // Called on the I/O thread with each engine that was loaded, before it takes requests. An error is a failure to
    // load. May be empty.
    std::function<Status(std::size_t model, Engine& engine)> prepare = {};
    // Gets one line for each model that is loaded, is unloaded or fails. May be empty.
    std::function<void(const std::string& model, std::string_view event, const std::string& why)> log = {};
  };

  // What is known of a model now.
  struct Info {
    const ServedDefaults& defaults;
    ModelState state;
    std::string reason;  // of kFailed
    ModelSize size;
    const ModelSummary& summary;
    const Served* served;  // null unless it is loaded
    bool open = false;     // gives leases at once: it is loaded, and is not to make room
    std::int64_t leases = 0;
    std::int64_t waiting = 0;
    std::int64_t loads = 0;
  };

  // Names a request that waits; 0 names none.
  using WaitId = std::uint64_t;
  using Answer = std::function<void(Result<ModelLease>)>;

  // The first model is the default. A model that does not fit in the memory beside those that are pinned is refused
  // from now on. REQUIRES: entries not empty.
  ModelDesk(std::vector<ModelEntry> entries, Options options);
  ModelDesk(const ModelDesk&) = delete;
  ModelDesk& operator=(const ModelDesk&) = delete;
  ~ModelDesk();

  // Takes an engine that was loaded before the first request. Errors: those of Options::prepare.
  Status install(std::size_t model, std::unique_ptr<Engine> engine);

  // Asks for a model; an empty name: the default; "a" stands for "a:latest" too. `answer` is called once: before this
  // returns if the model is loaded or the request is refused, otherwise later, unless forget() is called before.
  // Errors: see error_of_model(). `tenant`: of the request; 0: without tenants. Returns the id of a request that waits.
  WaitId ask(std::string_view name, int tenant, Answer answer);
  void forget(WaitId id);

  // Returns a lease of a model if that is loaded now. It does not count as a use of the model.
  ModelLease look(std::string_view name = {});

  // Returns the error for a name that no model has.
  Status unknown(std::string_view name) const;

  std::vector<Info> list() const;
  std::optional<Info> find(std::string_view name) const;
  const std::string& default_name() const { return models_.front()->entry.defaults.name; }
  // Returns the time since the longest pass under way began, of all models; 0 between passes.
  std::chrono::steady_clock::duration busy() const;

  // Makes room for requests that wait, and refuses those that have waited too long. Call it every kTick.
  static constexpr std::chrono::milliseconds kTick{50};
  void tick();

  // Ends the desk's thread after its current job, and the threads of all models. No lease may be used afterwards.
  void stop();

 private:
  friend class ModelLease;
  using Clock = std::chrono::steady_clock;

  struct Waiter {
    WaitId id = 0;
    int tenant = 0;
    Clock::time_point since;
    Answer answer;
  };
  struct Model {
    std::size_t index = 0;
    ModelEntry entry;
    ModelState state = ModelState::kUnloaded;
    std::unique_ptr<Served> served;
    std::int64_t leases = 0;
    std::int64_t loads = 0;
    std::deque<Waiter> waiters;
    bool closed = false;      // gives no leases: it is to make room
    Clock::time_point used;   // when it was last asked for
    Clock::time_point idle;   // since when no lease holds it
    Clock::time_point since;  // when it was loaded, or has failed
    Status failure;
  };

  Model* find_model(std::string_view name) const;
  static Info info_of(const Model& model);
  Status check_queue(const Model& model, int tenant) const;
  ModelLease lend(Model& model);
  void give_back(std::size_t model);
  void pump();
  void answer_waiters(Model& model);
  void start_job();
  Model* longest_waiting() const;
  bool fits(const Model& model, std::uint64_t freed) const;
  bool make_room(const Model& wanted, bool close_busy);
  void load(Model& model);
  void loaded(Model& model, Result<std::unique_ptr<Engine>> engine);
  Status begin_serving(Model& model, std::unique_ptr<Engine> engine);
  void fail(Model& model, const Status& why);
  void unload(Model& model);
  void log(const Model& model, std::string_view event, const std::string& why = {}) const;

  const Options options_;
  std::vector<std::unique_ptr<Model>> models_;
  WaitId next_ = 1;
  bool working_ = false;  // a model is being loaded or unloaded
  bool pumping_ = false;
  bool again_ = false;  // something has changed while pump() runs
  bool stopped_ = false;
  TextThread worker_;  // last: its jobs use the others
};

// Returns how an error of ModelDesk::ask() is reported: 404 for an unknown name, 400 for a model that can never be
// loaded, 429 where too many wait, 503 for one that could not be loaded now or in time.
ErrorText error_of_model(const Status& status);

}  // namespace kvasir::server
