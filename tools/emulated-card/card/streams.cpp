#include "streams.h"
#include "pools.h"
#include <algorithm>
#include <chrono>

namespace card {

std::recursive_mutex lock;
Stream &legacy = *new Stream{true, 0};
std::set<Stream *> &streams = *new std::set{&legacy};

namespace {

auto &captures = lasting<std::set<Capture *>>();

// Graph memory of streams that have ended, by card.
size_t left_of_graphs[MOST_CARDS] = {};

// The length of a card's queue. Adding more work waits.
constexpr size_t DEPTH = 1024;

const char *name = "the host";

void run(const Work &work) {
  struct Restore {
    const char *outer = name;
    ~Restore() { name = outer; }
  } restore;
  name = work.name;
  work.run();
}

void run_next(Stream &stream) {
  const Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.done++;
  run(work);
}

void push(Stream &stream, const char *what, std::function<void()> run) {
  if (stream.queue.size() >= DEPTH) run_next(stream);
  stream.queue.push_back({what, std::move(run)});
  stream.added++;
}

void push_wait(Stream &stream, Stream &other, uint64_t position) {
  if (other.done < position) push(stream, "waiting", [&other, position] { run_until(other, position); });
}

void spoil(Capture &capture, Status why) {
  capture.invalid = true;
  throw why;
}

double milliseconds() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

} // namespace

const char *running() { return name; }

Stream &stream(void *handle) {
  // The per-thread default stream is the legacy stream here, because candle does not use it.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return legacy;
  Stream *stream = static_cast<Stream *>(handle);
  check(streams.count(stream), INVALID_HANDLE);
  return *stream;
}

void add(Stream &stream, const char *what, std::function<void()> run, Node node) {
  if (stream.capture) {
    check(!stream.capture->invalid, CAPTURE_INVALIDATED);
    stream.capture->graph->work.push_back({what, std::move(run), node});
    return;
  }
  if (&stream == &legacy) {
    for (Stream *other : streams) {
      if (other == &legacy || !other->waits_for_legacy) continue;
      if (other->capture) spoil(*other->capture, CAPTURE_IMPLICIT);
      push_wait(legacy, *other, other->added);
    }
  } else if (stream.waits_for_legacy) {
    push_wait(stream, legacy, legacy.added);
  }
  push(stream, what, std::move(run));
}

void add(void *handle, const char *what, std::function<void()> run) {
  std::lock_guard guard(lock);
  add(stream(handle), what, std::move(run));
}

void together(const std::vector<void *> &handles, const char *what, std::function<void()> run) {
  struct Meeting {
    std::vector<std::pair<Stream *, uint64_t>> before;
    std::function<void()> run;
    bool over = false;
  };
  std::lock_guard guard(lock);
  auto meeting = std::make_shared<Meeting>();
  meeting->run = std::move(run);
  for (void *handle : handles) {
    Stream &one = stream(handle);
    not_captured(one);
    add(one, what, [meeting] {
      if (meeting->over) return;
      meeting->over = true;
      for (auto [other, position] : meeting->before) run_until(*other, position);
      meeting->run();
    });
    meeting->before.push_back({&one, one.added - 1});
  }
}

void run_until(Stream &stream, uint64_t position) {
  while (stream.done < position) run_next(stream);
}

void wait_for(Stream &stream) {
  not_captured(stream);
  run_until(stream, stream.added);
  pools::settle();
}

void wait_for_all() {
  for (Stream *stream : streams) run_until(*stream, stream->added);
  pools::settle();
}

void not_captured(Stream &stream) {
  if (stream.capture) spoil(*stream.capture, CAPTURE_UNSUPPORTED);
}

void nothing_captured() {
  for (Capture *capture : captures) {
    const bool here = capture->thread == std::this_thread::get_id();
    if (capture->mode == Mode::Global || (capture->mode == Mode::ThreadLocal && here))
      spoil(*capture, CAPTURE_UNSUPPORTED);
  }
}

void none_of_card_captured(int card) {
  for (Capture *capture : captures)
    if (capture->origin->card == card) spoil(*capture, CAPTURE_UNSUPPORTED);
}

uint64_t capture_of(void *handle) {
  std::lock_guard guard(lock);
  const Stream &asked = stream(handle);
  return asked.capture ? asked.capture->id : 0;
}

size_t of_graphs(int card) {
  size_t bytes = left_of_graphs[card];
  for (const Stream *stream : streams) bytes += stream->card == card ? stream->of_graphs : 0;
  return bytes;
}

size_t pools::kept_for_graphs() {
  size_t bytes = 0;
  for (int card = 0; card < MOST_CARDS; card++) bytes += of_graphs(card);
  return bytes;
}

void provide(Executable &executable, Stream &stream) {
  const size_t most = executable.graph->most;
  if (most <= stream.of_graphs) return;
  size_t &left = left_of_graphs[stream.card];
  const size_t more = most - stream.of_graphs, again = std::min(more, left);
  pools::make_room(more - again);
  left -= again;
  stream.of_graphs = most;
}

void end_stream(Stream &gone) {
  wait_for(gone);
  left_of_graphs[gone.card] += gone.of_graphs;
  // Not freed, because events may still refer to it.
  streams.erase(&gone);
}

// Streams with work in flight keep their graph memory.
void trim_graphs(int card) {
  left_of_graphs[card] = 0;
  for (Stream *stream : streams)
    if (stream->card == card && stream->done == stream->added) stream->of_graphs = 0;
}

void record(Event &event, Stream &stream) {
  event.captured = stream.capture != nullptr;
  event.capture = stream.capture;
  event.stream = &stream;
  if (stream.capture) {
    check(!stream.capture->invalid, CAPTURE_INVALIDATED);
    return;
  }
  auto passed = event.passed = std::make_shared<double>(-1);
  add(stream, "an event", [passed] { *passed = milliseconds(); });
  event.position = stream.added;
}

// A capture keeps its work in the order of the calls, which is an order that its events allow.
void wait_for(Stream &stream, Event &event) {
  if (event.captured) {
    auto capture = event.capture.lock();
    check(capture != nullptr, INVALID_VALUE);
    check(!stream.capture || stream.capture == capture, CAPTURE_UNSUPPORTED);
    if (!stream.capture) capture->unjoined.insert(&stream);
    stream.capture = capture;
    capture->unjoined.erase(event.stream);
  } else if (stream.capture) {
    // An event recorded before the capture is not part of it.
    if (event.stream != nullptr) spoil(*stream.capture, CAPTURE_ISOLATION);
  } else if (event.stream != nullptr && event.stream != &stream) {
    push_wait(stream, *event.stream, event.position);
  }
}

void begin(Stream &stream, Mode mode) {
  static uint64_t count = 0;
  check(&stream != &legacy, CAPTURE_UNSUPPORTED);
  check(!stream.capture, ILLEGAL_STATE);
  stream.capture.reset(new Capture{mode, &stream, std::this_thread::get_id(), ++count},
                       [](Capture *capture) { captures.erase(capture), delete capture; });
  captures.insert(stream.capture.get());
}

std::shared_ptr<Graph> end(Stream &stream) {
  const auto capture = stream.capture;
  check(capture && capture->origin == &stream, ILLEGAL_STATE);
  check(capture->mode == Mode::Relaxed || capture->thread == std::this_thread::get_id(), CAPTURE_WRONG_THREAD);
  for (Stream *other : streams)
    if (other->capture == capture) other->capture.reset();
  check(!capture->invalid, CAPTURE_INVALIDATED);
  check(capture->unjoined.empty(), CAPTURE_UNJOINED);
  // The allocations do not exist before the first launch.
  for (uintptr_t address : capture->graph->kept) memory::at(address).freed = true;
  return capture->graph;
}

Graph::~Graph() {
  for (uintptr_t address : memory) {
    memory::Allocation &a = memory::at(address);
    a.of_graph = false;
    // Allocations that the graph did not free are freed by their users.
    if (!a.there) memory::forget(address);
  }
}

void launch(Executable &executable, Stream &stream) {
  check(!stream.capture, CAPTURE_UNSUPPORTED);
  provide(executable, stream);
  const auto graph = executable.graph;
  for (uintptr_t address : graph->kept) {
    memory::Allocation &a = memory::at(address);
    check(a.freed || executable.frees_on_launch, INVALID_VALUE);
    a.freed = false;
  }
  const bool frees = executable.frees_on_launch;
  add(stream, "a graph", [graph, frees] {
    for (uintptr_t address : graph->kept)
      if (frees) memory::take(address);
    for (const Work &work : graph->work) run(work);
  });
}

uintptr_t allocate(size_t bytes, Pool *pool) {
  const uintptr_t address = memory::address_of(bytes);
  memory::at(address).pool = pool;
  try {
    memory::give(address);
  } catch (Status) {
    // Run all queued work, which includes pending frees, and try again.
    wait_for_all();
    try {
      memory::give(address);
    } catch (Status status) {
      memory::forget(address);
      throw;
    }
  }
  return address;
}

uintptr_t allocate(size_t bytes, Stream &stream) {
  if (!stream.capture) return allocate(bytes, &pools::current(stream.card));
  const uintptr_t address = memory::address_of(bytes);
  memory::at(address).of_graph = true;
  add(stream, "an allocation", [address] { memory::give(address); }, {Kind::Allocation});
  Graph &graph = *stream.capture->graph;
  graph.most = std::max(graph.most, graph.bytes += memory::rounded(bytes));
  graph.memory.push_back(address);
  graph.kept.push_back(address);
  return address;
}

void release(uintptr_t address, Stream &stream) {
  memory::Allocation &a = memory::at(address);
  check(!a.freed, INVALID_VALUE);
  if (stream.capture) {
    auto &kept = stream.capture->graph->kept;
    const auto found = std::find(kept.begin(), kept.end(), address);
    if (found == kept.end()) spoil(*stream.capture, INVALID_VALUE);
    add(stream, "a free", [address] { memory::take(address); }, {Kind::Free});
    kept.erase(found);
    stream.capture->graph->bytes -= memory::rounded(a.bytes);
  } else {
    // The address of a graph's allocation stays with the graph.
    add(stream, "a free", [address] {
      memory::at(address).of_graph ? memory::take(address) : memory::forget(address);
    });
  }
  a.freed = true;
}

} // namespace card
