// The threads of the server and what passes between them, with an engine that fails on demand.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <list>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/fake_engine.h"
#include "server/http/http_bodies.h"
#include "server/http/http_server.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {
namespace {

using std::chrono::milliseconds;

// Runs what is posted at once, and lets a test wait for what it did.
class Heard {
 public:
  Post post() {
    return [this](const std::function<void()>& function) {
      const std::lock_guard lock(mutex_);
      if (posts_that_throw > 0) {
        --posts_that_throw;
        throw std::bad_alloc();
      }
      function();
      changed_.notify_all();
    };
  }
  template <class Condition>
  bool wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(300), condition);
  }

  int posts_that_throw = 0;
  std::vector<std::string> lines;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

StepThread::Listener listener(Heard& heard, const std::string& name) {
  return {[&heard, name](const Status& status) { heard.lines.push_back(name + (status.ok() ? " taken" : " refused")); },
          [&heard, name](const Event&) { heard.lines.push_back(name + " ended"); }};
}

TEST(StepThreads, OneFaultEndsOneRequestAlone) {
  Heard heard;
  auto engine = std::make_unique<FakeEngine>();
  engine->submits_that_throw = 1;
  StepThread steps(std::move(engine), {heard.post(), 8, {}});
  ASSERT_TRUE(steps.submit({}, listener(heard, "a")).ok());
  ASSERT_TRUE(heard.wait([&] { return heard.lines.size() == 1; }));
  EXPECT_EQ(heard.lines[0], "a refused");
  ASSERT_TRUE(steps.ask([](Engine&) { throw std::bad_alloc(); }, [&] { heard.lines.push_back("failed"); }).ok());
  ASSERT_TRUE(heard.wait([&] { return heard.lines.size() == 2; }));
  EXPECT_EQ(heard.lines[1], "failed");
  ASSERT_TRUE(steps.ask([](Engine&) { throw std::bad_alloc(); }).ok());
  heard.wait([&] {
    heard.posts_that_throw = 2;
    return true;
  });
  ASSERT_TRUE(steps.submit({}, listener(heard, "b")).ok());
  ASSERT_TRUE(heard.wait([&] { return heard.lines.size() == 4; })) << "nothing that was posted is lost";
  EXPECT_EQ(heard.lines[2], "b taken");
  EXPECT_EQ(heard.lines[3], "b ended");
}

TEST(StepThreads, QueueBoundsThoseThatWaitInTheEngineToo) {
  Heard heard;
  auto engine = std::make_unique<FakeEngine>();
  engine->waits = true;
  StepThread steps(std::move(engine), {heard.post(), 3, {}});
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) {
    const Result<Ticket> ticket = steps.submit({}, listener(heard, "a"));
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
    while (steps.report().engine.waiting <= i) std::this_thread::yield();  // the engine has it
  }
  const Result<Ticket> more = steps.submit({}, listener(heard, "b"));
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code(), StatusCode::kResourceExhausted);
  steps.cancel(tickets[1]);
  while (steps.report().engine.waiting > 2) std::this_thread::yield();
  EXPECT_TRUE(steps.submit({}, listener(heard, "c")).ok());
}

// One tenant alone takes half of the queue, a second half of what is left; requests without a tenant take all of it.
TEST(StepThreads, ATenantLeavesRoomInTheQueue) {
  Heard heard;
  auto engine = std::make_unique<FakeEngine>();
  engine->waits = true;
  StepThread steps(std::move(engine), {heard.post(), 16, {}});
  std::vector<Ticket> first;
  const auto taken = [&](int tenant) {
    int count = 0;
    while (true) {
      RequestOptions options;
      options.tenant = tenant;
      const Result<Ticket> ticket = steps.submit(options, listener(heard, "a"));
      if (!ticket.ok()) {
        EXPECT_EQ(ticket.status().code(), StatusCode::kResourceExhausted);
        return count;
      }
      if (tenant == 1) first.push_back(*ticket);
      ++count;
      while (steps.report().engine.waiting < 16 && steps.report().queued > 0) std::this_thread::yield();
    }
  };
  EXPECT_EQ(taken(1), 8);
  EXPECT_EQ(taken(2), 4);
  EXPECT_EQ(taken(1), 0);
  steps.cancel(first[0]);
  steps.cancel(first[1]);
  while (steps.report().engine.waiting > 10) std::this_thread::yield();
  EXPECT_EQ(taken(1), 0) << "it still has as many as are free";
  EXPECT_EQ(taken(0), 6);
}
TEST(StepThreads, NothingRunsAfterStop) {
  Heard heard;
  StepThread steps(std::make_unique<FakeEngine>(), {heard.post(), 8, {}});
  steps.stop();
  EXPECT_TRUE(steps.ask([&](Engine&) { ADD_FAILURE(); }).ok());
  EXPECT_TRUE(steps.submit({}, listener(heard, "a")).ok());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(heard.lines.empty());
}

TEST(TextThreads, WorkThatThrowsEndsItsOwnJobAlone) {
  Heard heard;
  TextThread texts({heard.post(), 8, 100});
  ASSERT_TRUE(texts
                  .run(
                      1, [] { throw std::bad_alloc(); }, [&] { heard.lines.push_back("first"); })
                  .ok());
  ASSERT_TRUE(texts
                  .run(
                      1, [] {}, [&] { heard.lines.push_back("second"); })
                  .ok());
  ASSERT_TRUE(heard.wait([&] { return heard.lines.size() == 2; }));
  EXPECT_EQ(heard.lines, (std::vector<std::string>{"first", "second"}));
}

// Destructors of JSON values allocate: without memory they would end the process.
TEST(TextThreadsDeathTest, WorkWithoutMemoryEndsItsOwnJobAlone) {
#ifdef KVASIR_SANITIZED
  GTEST_SKIP() << "sanitizers take more addresses than are allowed here";
#endif
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [] {
    Heard heard;
    TextThread texts({heard.post(), 8, 100});
    const auto copy_until_none_is_left = [] {
      constexpr rlim_t kAddresses = rlim_t{1} << 30;
      const rlimit limit = {kAddresses, RLIM_INFINITY};
      if (setrlimit(RLIMIT_AS, &limit) != 0) return;
      const nlohmann::json list(std::size_t{100'000}, nlohmann::json(0));
      std::list<nlohmann::json> copies;
      while (true) copies.push_back({{"copy", list}});
    };
    for (const char* name : {"first", "second", "third"})
      if (!texts.run(1, copy_until_none_is_left, [&heard, name] { heard.lines.push_back(name); }).ok()) std::_Exit(1);
    std::_Exit(heard.wait([&] { return heard.lines.size() == 3; }) ? 0 : 2);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(TextThreads, CallersTakeTurnsAndSmallTextsGoFirst) {
  Heard heard;
  TextThread texts({heard.post(), 4, 64 << 20});
  std::mutex gate;
  gate.lock();
  std::atomic<bool> began = false;
  const auto add = [&](const std::string& caller, std::size_t bytes, const std::string& name) {
    return texts
        .run(
            bytes, [] {}, [&heard, name] { heard.lines.push_back(name); }, caller)
        .ok();
  };
  ASSERT_TRUE(texts
                  .run(
                      1,
                      [&] {
                        began = true;
                        const std::lock_guard lock(gate);
                      },
                      [] {}, "z")
                  .ok());
  // Until then the thread could take the first of the others.
  while (!began) std::this_thread::yield();
  constexpr std::size_t kLarge = 8 << 20;
  for (const char* name : {"a1", "a2", "a3"}) ASSERT_TRUE(add("a", kLarge, name));
  ASSERT_TRUE(add("a", 10, "a-small"));
  EXPECT_FALSE(add("a", 10, "a-more")) << "the caller has its four";
  for (const char* name : {"b1", "b2"}) ASSERT_TRUE(add("b", kLarge, name));
  for (const char* name : {"c1", "c2", "c3"}) ASSERT_TRUE(add("c", 10, name));
  gate.unlock();
  ASSERT_TRUE(heard.wait([&] { return heard.lines.size() == 9; }));
  const auto place = [&](std::string_view name) { return std::ranges::find(heard.lines, name) - heard.lines.begin(); };
  EXPECT_LT(place("a1"), place("a2"));
  EXPECT_LT(place("b1"), place("a2")) << "the callers of large texts take turns";
  EXPECT_LT(place("a2"), place("b2"));
  EXPECT_LT(place("a-small"), place("a2"));
  for (const char* name : {"c1", "c2", "c3"}) EXPECT_LT(place(name), place("b2"));
  EXPECT_LT(place("c3"), place("a2"));
}

TEST(HttpServers, DropWhatWasPostedAndNotRun) {
  Result<std::unique_ptr<HttpServer>> http = HttpServer::open("127.0.0.1", 0, {}, {});
  ASSERT_TRUE(http.ok()) << http.status().message();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  int ticks = 0;
  (*http)->every(milliseconds(1), [&] {
    if (++ticks == 1) throw std::bad_alloc();
    if (ticks == 3) (*http)->stop();
  });
  (*http)->run();
  EXPECT_EQ(ticks, 3) << "a timer goes on after one that found no memory";
  (*http)->post([held = std::move(held)] { ADD_FAILURE() << "what it uses may be gone"; });
  std::this_thread::sleep_for(milliseconds(5));
  http->reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(ticks, 3);
}

// Connects to a server, asks, and returns what it answers until it closes. Reads nothing before `may_read`.
std::string ask(std::uint16_t port, const std::function<bool()>& may_read) {
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  const int small = 4096;
  ::setsockopt(client, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  static constexpr std::string_view kRequest = "GET / HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::send(client, kRequest.data(), kRequest.size(), 0), std::ssize(kRequest));
  for (int i = 0; i < 30000 && !may_read(); ++i) std::this_thread::sleep_for(milliseconds(10));
  std::string answer, part(65536, '\0');
  for (ssize_t got; (got = ::recv(client, part.data(), part.size(), 0)) > 0;)
    answer.append(part, 0, static_cast<std::size_t>(got));
  ::close(client);
  return answer;
}
// What one turn of the server writes may be more than the bound; a reader that falls behind by more loses its
// connection, and the writer hears of it after its call.
TEST(HttpServers, BoundWhatAReaderLeaves) {
  HttpLimits limits;
  limits.queued_bytes = 64 << 10;
  int writes = 0, answers = 0;
  bool in_write = false, closed = false;
  std::atomic<int> last_closed = 0;  // of the answers, counted from 1
  std::shared_ptr<HttpAnswer> answer;
  const std::string piece(64 << 10, '#');
  Result<std::unique_ptr<HttpServer>> http =
      HttpServer::open("127.0.0.1", 0, limits, [&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
        answer = std::move(given);
        closed = false;
        answer->on_closed([&, number = ++answers] {
          EXPECT_FALSE(in_write);
          closed = true;
          last_closed = number;
        });
        answer->begin_stream();
        in_write = true;
        for (int i = 0; i < 8; ++i) answer->write(piece);
        in_write = false;
        writes = 8;
      });
  ASSERT_TRUE(http.ok()) << http.status().message();
  bool endless = false;
  (*http)->every(milliseconds(20), [&] {
    if (answer == nullptr || closed) return;
    if (!endless) return std::exchange(answer, nullptr)->end();
    in_write = true;
    answer->write(piece);
    in_write = false;
    ++writes;
  });
  std::thread server([&] { (*http)->run(); });
  const std::string whole = ask((*http)->port(), [] { return true; });
  EXPECT_EQ(std::ranges::count(whole, '#'), 8 * std::ssize(piece));
  (*http)->post([&] { endless = true; });
  const std::string cut = ask((*http)->port(), [&] { return last_closed == 2; });
  (*http)->stop();
  server.join();
  EXPECT_TRUE(closed);
  EXPECT_GT(std::ranges::count(cut, '#'), 0);
  EXPECT_LT(std::ranges::count(cut, '#'), writes * std::ssize(piece));
}
TEST(HttpServers, BodiesOfOneAccountLeaveRoomForOthers) {
  HttpBodies bodies(100);
  bodies.change("a", 0, 50);
  EXPECT_TRUE(bodies.fits("a"));
  bodies.change("a", 50, 51);
  EXPECT_FALSE(bodies.fits("a"));
  bodies.change("a", 51, 50);
  bodies.change("b", 0, 25);
  EXPECT_TRUE(bodies.fits("b"));
  EXPECT_FALSE(bodies.fits("a"));
  bodies.change("c", 0, 12);
  EXPECT_TRUE(bodies.fits("c"));
  bodies.change("c", 12, 0);
  bodies.change("b", 25, 0);
  EXPECT_TRUE(bodies.fits("a"));
  EXPECT_TRUE(bodies.fits("nobody"));
}

}  // namespace
}  // namespace kvasir::server
