// The desk of models, with engines that run nothing.
#include "server/models/model_desk.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/fake_engine.h"
#include "server/models/asked_model.h"

namespace kvasir::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNever{3'600'000};

// The I/O thread's queue: the test runs what is posted.
class Loop {
 public:
  Post post() {
    return [this](std::function<void()> function) {
      {
        const std::lock_guard lock(mutex_);
        posted_.push_back(std::move(function));
      }
      wake_.notify_all();
    };
  }
  // Runs posted functions until the condition holds. `tick`: called beside, as the server does several times a second.
  template <class Condition>
  bool run_until(const Condition& holds, const std::function<void()>& tick = {}) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::deque<std::function<void()>> now;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, milliseconds(2), [&] { return !posted_.empty(); });
        now.swap(posted_);
      }
      for (const auto& function : now) function();
      if (tick) tick();
    }
    return true;
  }
  // Drops what was posted, as the server's end does.
  void drop() {
    const std::lock_guard lock(mutex_);
    posted_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> posted_;
};

class ModelDesks : public ::testing::Test {
 protected:
  ModelDesks() { options_.grace = milliseconds(0); }
  // A model of `bytes` bytes, of which one is KV memory.
  ModelEntry entry(const std::string& name, std::uint64_t bytes) {
    ModelEntry entry;
    entry.defaults.name = name;
    entry.size = {bytes - 1, 1, 0};
    entry.load = [bytes]() -> Result<std::unique_ptr<Engine>> {
      auto engine = std::make_unique<FakeEngine>();
      engine->summary.weight_bytes = bytes - 1;
      engine->kv_bytes = 1;
      return std::unique_ptr<Engine>(std::move(engine));
    };
    return entry;
  }
  void open(std::vector<ModelEntry> entries, std::uint64_t memory, milliseconds patience = kNever) {
    options_.post = loop_.post();
    options_.memory = memory;
    options_.patience = patience;
    options_.log = [this](const std::string& model, std::string_view event, const std::string&) {
      log_.push_back(std::string(event) + " " + model);
      std::uint64_t bytes = 0;
      for (const ModelDesk::Info& info : desk_->list())
        if (info.state != ModelState::kUnloaded && info.state != ModelState::kFailed) bytes += info.size.total();
      most_bytes_ = std::max(most_bytes_, bytes);
    };
    desk_.emplace(std::move(entries), options_);
  }
  void TearDown() override {
    leases_.clear();
    loop_.drop();
  }

  // Asks, and keeps what comes: the lease under `key`, or the error.
  ModelDesk::WaitId ask(const std::string& name, const std::string& key, int tenant = 0) {
    return desk_->ask(name, tenant, [this, key](Result<ModelLease> lease) {
      order_.push_back(key);
      if (lease.ok()) {
        leases_[key] = std::move(*lease);
      } else {
        errors_[key] = lease.status();
      }
    });
  }
  bool wait_for(const std::string& key) {
    return loop_.run_until([&] { return leases_.contains(key) || errors_.contains(key); }, [&] { desk_->tick(); });
  }
  bool settle() {
    return loop_.run_until([&] {
      for (const ModelDesk::Info& info : desk_->list())
        if (info.state == ModelState::kLoading || info.state == ModelState::kUnloading) return false;
      return true;
    });
  }
  ModelState state(std::string_view name) const { return desk_->find(name)->state; }

  Loop loop_;
  ModelDesk::Options options_;
  std::vector<std::string> log_, order_;
  std::uint64_t most_bytes_ = 0;
  std::map<std::string, ModelLease> leases_;
  std::map<std::string, Status> errors_;
  std::optional<ModelDesk> desk_;
};

TEST_F(ModelDesks, LoadOnceForAllThatWait) {
  open({entry("a", 10), entry("b", 10)}, 20);
  EXPECT_EQ(state("a"), ModelState::kUnloaded);
  ask("a", "first");
  ask("", "second");  // the default
  ask("b", "third");
  EXPECT_EQ(state("a"), ModelState::kLoading);
  EXPECT_TRUE(order_.empty());
  ASSERT_TRUE(wait_for("third"));
  EXPECT_EQ(order_, (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_EQ(leases_["second"]->defaults.name, "a");
  EXPECT_EQ(leases_["third"]->defaults.name, "b");
  EXPECT_EQ(desk_->find("a")->loads, 1);
  EXPECT_EQ(desk_->find("a")->leases, 2);
  EXPECT_EQ(ask("b", "fourth"), 0u);  // answered at once
  EXPECT_EQ(order_.back(), "fourth");
}

TEST_F(ModelDesks, NameTheModelsThatThereAre) {
  open({entry("a", 10), entry("b", 10)}, 20);
  EXPECT_EQ(ask("c", "c"), 0u);
  EXPECT_EQ(errors_["c"].message(), "there is no model 'c' here; there are 'a', 'b'");
  EXPECT_EQ(error_of_model(errors_["c"]).http, 404);
  EXPECT_FALSE(desk_->find("c").has_value());
  EXPECT_TRUE(log_.empty());
}

TEST_F(ModelDesks, ATagMayBeOmitted) {
  open({entry("a", 10), entry("b:latest", 10)}, 20);
  ask("b", "b");
  ask("b:latest", "b:latest");
  ASSERT_TRUE(wait_for("b:latest"));
  EXPECT_EQ(leases_["b"]->defaults.name, "b:latest");
  EXPECT_FALSE(desk_->find("a:other").has_value());
}

TEST_F(ModelDesks, UnloadTheLeastRecentlyUsedOfThoseThatNobodyHolds) {
  open({entry("a", 10), entry("b", 10), entry("c", 10)}, 25);
  for (const char* name : {"a", "b", "a"}) {
    ask(name, name);
    ASSERT_TRUE(wait_for(name));
    leases_.clear();
  }
  EXPECT_EQ(state("b"), ModelState::kLoaded);
  ask("c", "c");
  ASSERT_TRUE(wait_for("c"));
  EXPECT_EQ(state("a"), ModelState::kLoaded);
  EXPECT_EQ(state("b"), ModelState::kUnloaded);
  EXPECT_LE(most_bytes_, 25u);
  EXPECT_EQ(log_, (std::vector<std::string>{"loading a", "loaded a", "loading b", "loaded b", "unloading b",
                                            "unloaded b", "loading c", "loaded c"}));
}

TEST_F(ModelDesks, KeepThoseThatAreNotNeededToMakeRoom) {
  open({entry("small", 2), entry("big", 10), entry("c", 10)}, 15);
  for (const char* name : {"small", "big"}) {
    ask(name, name);
    ASSERT_TRUE(wait_for(name));
    leases_.clear();
  }
  ask("c", "c");
  ASSERT_TRUE(wait_for("c"));
  EXPECT_EQ(state("small"), ModelState::kLoaded);  // although it was asked for longest ago
  EXPECT_EQ(state("big"), ModelState::kUnloaded);
  EXPECT_LE(most_bytes_, 15u);
}

TEST_F(ModelDesks, UnloadAsManyAsAreNeeded) {
  open({entry("a", 4), entry("b", 3), entry("c", 5), entry("d", 8)}, 12);
  for (const char* name : {"a", "b", "c"}) {
    ask(name, name);
    ASSERT_TRUE(wait_for(name));
    leases_.clear();
  }
  ask("d", "d");
  ASSERT_TRUE(wait_for("d"));
  EXPECT_EQ(state("a"), ModelState::kUnloaded);
  EXPECT_EQ(state("b"), ModelState::kLoaded);
  EXPECT_EQ(state("c"), ModelState::kUnloaded);
  EXPECT_LE(most_bytes_, 12u);
}

TEST_F(ModelDesks, AModelThatWasJustUsedStaysForAMoment) {
  options_.grace = milliseconds(150);
  open({entry("a", 10), entry("b", 10)}, 15, milliseconds(300));
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  std::this_thread::sleep_for(milliseconds(320));  // it has been loaded for longer than the patience
  leases_.clear();
  const auto idle = std::chrono::steady_clock::now();
  ask("b", "b");
  EXPECT_EQ(state("a"), ModelState::kLoaded);
  ASSERT_TRUE(wait_for("b"));
  EXPECT_GE(std::chrono::steady_clock::now() - idle, milliseconds(150));
  EXPECT_EQ(state("a"), ModelState::kUnloaded);
}

TEST_F(ModelDesks, NeverUnloadAModelThatIsHeld) {
  open({entry("a", 10), entry("b", 10)}, 15, milliseconds(0));
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  ask("b", "b");
  for (int i = 0; i < 20; ++i) {
    desk_->tick();
    loop_.run_until([] { return true; });
  }
  EXPECT_EQ(state("a"), ModelState::kLoaded);
  EXPECT_FALSE(leases_.contains("b"));
  leases_["a"].reset();
  ASSERT_TRUE(wait_for("b"));
  EXPECT_EQ(state("a"), ModelState::kUnloaded);
  EXPECT_LE(most_bytes_, 15u);
}

TEST_F(ModelDesks, StarveNobodyUnderSteadyTrafficToBoth) {
  open({entry("a", 10), entry("b", 10)}, 15, milliseconds(20));
  // Each model has two clients whose requests overlap, so that it is held at every moment that it is open.
  struct Client {
    std::string name;
    int answers = 0;
    ModelLease lease;
  };
  std::vector<Client> clients(4);
  std::function<void(Client&)> begin = [&](Client& client) {
    desk_->ask(client.name, 0, [&client](Result<ModelLease> lease) {
      ASSERT_TRUE(lease.ok());
      client.lease = std::move(*lease);
      ++client.answers;
    });
  };
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].name = i < 2 ? "a" : "b";
    begin(clients[i]);
  }
  std::size_t turn = 0;
  const auto served = [&] {
    for (const Client& client : clients)
      if (client.answers < 50) return false;
    return desk_->find("a")->loads >= 3 && desk_->find("b")->loads >= 3;
  };
  EXPECT_TRUE(loop_.run_until(served, [&] {
    Client& client = clients[turn++ % clients.size()];
    if (client.lease) {
      client.lease.reset();
      begin(client);
    }
    desk_->tick();
  }));
  EXPECT_LE(most_bytes_, 15u);
  for (Client& client : clients) client.lease.reset();
}

TEST_F(ModelDesks, AModelThatFitsNeedNotWaitForOneThatDoesNot) {
  open({entry("a", 10), entry("big", 12), entry("small", 5)}, 20);
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  ask("big", "big");
  ask("small", "small");
  ASSERT_TRUE(wait_for("small"));
  EXPECT_FALSE(leases_.contains("big"));
  leases_["a"].reset();
  ASSERT_TRUE(wait_for("big"));
  EXPECT_EQ(state("small"), ModelState::kLoaded);
  EXPECT_LE(most_bytes_, 20u);
}

TEST_F(ModelDesks, AFailureToLoadAnswersAllAndIsTriedAgainLater) {
  ModelEntry fails = entry("a", 10);
  std::atomic<int> tries = 0;
  fails.load = [&tries, works = fails.load]() -> Result<std::unique_ptr<Engine>> {
    if (++tries == 1) return Status(StatusCode::kDataLoss, "the file is truncated");
    if (tries == 2) throw std::bad_alloc();
    return works();
  };
  options_.retry = milliseconds(30);
  open({fails}, 20);
  ask("a", "first");
  ask("a", "second");
  ASSERT_TRUE(wait_for("second"));
  EXPECT_EQ(errors_["first"].message(), "the model 'a' could not be loaded: the file is truncated");
  EXPECT_EQ(error_of_model(errors_["second"]).http, 503);
  EXPECT_EQ(desk_->find("a")->reason, "the file is truncated");
  ask("a", "at once");
  EXPECT_TRUE(errors_.contains("at once"));
  EXPECT_EQ(tries, 1);
  std::this_thread::sleep_for(milliseconds(40));
  ask("a", "again");
  ASSERT_TRUE(wait_for("again"));
  EXPECT_NE(errors_["again"].message().find("memory"), std::string::npos);
  std::this_thread::sleep_for(milliseconds(40));
  ask("a", "at last");
  ASSERT_TRUE(wait_for("at last"));
  EXPECT_TRUE(leases_.contains("at last"));
  EXPECT_EQ(state("a"), ModelState::kLoaded);
}

TEST_F(ModelDesks, RefuseAModelThatCanNeverFit) {
  ModelEntry pinned = entry("a", 10);
  pinned.pinned = true;
  ModelEntry broken = entry("broken", 1);
  broken.refusal = Status(StatusCode::kDataLoss, "the file is damaged");
  open({pinned, entry("b", 12), entry("c", 10), broken}, 20);
  EXPECT_EQ(state("b"), ModelState::kFailed);
  ask("b", "b");
  EXPECT_EQ(errors_["b"].message(),
            "the model 'b' cannot be loaded: it needs 12 bytes of memory, and 10 are left beside the models that stay "
            "loaded");
  EXPECT_EQ(error_of_model(errors_["b"]).http, 400);
  ask("broken", "broken");
  EXPECT_EQ(errors_["broken"].message(), "the model 'broken' cannot be loaded: the file is damaged");
  ask("c", "c");
  EXPECT_TRUE(wait_for("c"));
}

TEST_F(ModelDesks, APinnedModelStays) {
  ModelEntry pinned = entry("a", 10);
  pinned.pinned = true;
  open({pinned, entry("b", 10), entry("c", 10)}, 20, milliseconds(0));
  for (const char* name : {"a", "b", "c", "b"}) {
    ask(name, name);
    ASSERT_TRUE(wait_for(name)) << name;
    leases_.clear();
  }
  EXPECT_EQ(state("a"), ModelState::kLoaded);
  EXPECT_EQ(desk_->find("a")->loads, 1);
}

TEST_F(ModelDesks, ForgetRequestsWhoseClientsLeft) {
  open({entry("a", 10), entry("b", 10)}, 15);
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  const ModelDesk::WaitId waits = ask("b", "b");
  EXPECT_NE(waits, 0u);
  desk_->forget(waits);
  leases_["a"].reset();
  ASSERT_TRUE(settle());
  EXPECT_EQ(state("a"), ModelState::kLoaded);
  EXPECT_EQ(state("b"), ModelState::kUnloaded);
  desk_->forget(waits);
}

TEST_F(ModelDesks, BoundThoseThatWait) {
  options_.queue = 2;
  open({entry("a", 10)}, 0);
  ask("a", "first");
  ask("a", "second");
  ask("a", "third");
  EXPECT_EQ(error_of_model(errors_["third"]).http, 429);
  ASSERT_TRUE(wait_for("second"));
}

TEST_F(ModelDesks, ATenantLeavesOthersRoomToWait) {
  options_.queue = 4;
  open({entry("a", 10)}, 0);
  for (const char* key : {"1.1", "1.2", "1.3"}) ask("a", key, 1);
  EXPECT_EQ(error_of_model(errors_["1.3"]).http, 429);
  ask("a", "2.1", 2);
  EXPECT_FALSE(errors_.contains("2.1"));
  ASSERT_TRUE(wait_for("2.1"));
  EXPECT_EQ(errors_.size(), 1u);
}

TEST_F(ModelDesks, RefuseThoseThatHaveWaitedTooLong) {
  options_.queue_timeout = std::chrono::seconds(1);
  open({entry("a", 10), entry("b", 10)}, 15);
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  ask("b", "b");
  ASSERT_TRUE(wait_for("b"));
  EXPECT_EQ(error_of_model(errors_["b"]).code, "queue_timeout");
  EXPECT_EQ(errors_["b"].message(), "the model 'b' was not loaded within 1 s; try again later");
  EXPECT_EQ(desk_->find("b")->waiting, 0);
  EXPECT_EQ(state("a"), ModelState::kLoaded);
}

TEST_F(ModelDesks, RefusedPreparationIsAFailure) {
  options_.prepare = [](std::size_t, Engine&) { return Status(StatusCode::kInvalidArgument, "the quotas do not fit"); };
  open({entry("a", 10)}, 0);
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  EXPECT_NE(errors_["a"].message().find("the quotas do not fit"), std::string::npos);
}

TEST_F(ModelDesks, NoMemoryToServeIsAFailure) {
  options_.prepare = [](std::size_t, Engine&) -> Status { throw std::bad_alloc(); };
  open({entry("a", 10)}, 0);
  ask("a", "a");
  ASSERT_TRUE(wait_for("a"));
  EXPECT_NE(errors_["a"].message().find("memory"), std::string::npos);
  EXPECT_EQ(state("a"), ModelState::kFailed);
}

TEST_F(ModelDesks, EndWhileModelsAreLoadedAndWaitedFor) {
  open({entry("a", 10), entry("b", 10)}, 15);
  ask("a", "a");
  ask("b", "b");
  desk_->stop();
  desk_->tick();
  EXPECT_TRUE(order_.empty());
}

TEST_F(ModelDesks, LookingIsNoUse) {
  open({entry("a", 10), entry("b", 10), entry("c", 10)}, 20);
  EXPECT_FALSE(desk_->look("a"));
  for (const char* name : {"a", "b"}) {
    ask(name, name);
    ASSERT_TRUE(wait_for(name));
    leases_.clear();
  }
  EXPECT_TRUE(desk_->look("a"));
  ask("c", "c");
  ASSERT_TRUE(wait_for("c"));
  EXPECT_EQ(state("a"), ModelState::kUnloaded);
}

TEST(AskedModels, AreReadFromAnyBody) {
  const auto read = [](const std::string& body, const char* field = "model") {
    const Result<std::string> name = asked_model(body, field);
    return name.ok() ? *name : "error: " + name.status().message();
  };
  EXPECT_EQ(read(R"({"model":"a","prompt":"x"})"), "a");
  EXPECT_EQ(read(R"( { "prompt" : "\"model\":\"no\"", "x":{"model":"no"}, "mod\u0065l" : "b\"c" } )"), "b\"c");
  EXPECT_EQ(read(R"({"model":"a","model":"b"})"), "b");  // as a parser reads it
  EXPECT_EQ(read(R"({"name":"a"})", "name"), "a");
  EXPECT_EQ(read(R"({"prompt":"a\\","model":"b"})"), "b");
  for (const char* none : {"", "{", "[]", "\"model\"", R"({"model")", R"({"model":)", R"({"model":null})", R"({"a"})",
                           R"({"\)", R"({"model":"a)", R"({"model":})", "{]]", R"({"x":}]"model":"a"})"})
    EXPECT_EQ(read(none), "") << none;
}

TEST(AskedModels, AreStringsOfNoGreatLength) {
  const std::string lists = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& other : {std::string("5"), std::string("true"), std::string(R"(["a"])"), lists}) {
    const Result<std::string> name = asked_model(R"({"model":)" + other + "}");
    ASSERT_EQ(name.status().code(), StatusCode::kInvalidArgument) << other.substr(0, 10);
    EXPECT_EQ(name.status().message(), "'model' must be a string");
    EXPECT_EQ(name.status().settings(), std::vector<std::string_view>{"model"});
  }
  EXPECT_EQ(*asked_model(R"({"model":")" + std::string(4000, 'a') + "\"}"), std::string(4000, 'a'));
  EXPECT_EQ(asked_model(R"({"model":")" + std::string(5000, 'a') + "\"}").status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir::server
