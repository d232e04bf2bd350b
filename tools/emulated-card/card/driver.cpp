// The driver's functions in libcuda.so.1. Names and types follow NVIDIA's cuda.h.
#include "../emulate.h"
#include "pools.h"
#include "streams.h"

using namespace card;

using Device = int;
using Pointer = unsigned long long;
using Handle = void *;

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

constexpr const char *NAME = "Sconce's emulated card (a CPU)";
constexpr int VERSION = 13000;
constexpr size_t SHARED = 48 << 10, SHARED_ON_REQUEST = 227 << 10;

bool initialized = false;
int contexts[MOST_CARDS];
thread_local Handle current = nullptr;

int cards() {
  static const char *text = getenv("SCONCE_EMULATED_CARDS");
  static const int count = text ? atoi(text) : 1;
  if (count < 1 || count > MOST_CARDS) die("SCONCE_EMULATED_CARDS: expected 1..%d, got %s", MOST_CARDS, text);
  return count;
}

void check_device(Device device) {
  check(initialized, NOT_INITIALIZED);
  check(device >= 0 && device < cards(), INVALID_DEVICE);
}

// Runs a call that needs a context, as calls on streams and memory do.
template <typename Call> int in_context(const char *function, Call call) {
  return answer([&] {
    if (current == nullptr) fprintf(stderr, "emulated card: %s by a thread without a context\n", function);
    check(current != nullptr, INVALID_CONTEXT);
    call();
  });
}
#define IN_CONTEXT(...) in_context(__func__, [&] __VA_ARGS__)

using Sizes = std::vector<size_t>;

// A kernel's entry in a PTX: bytes of its parameters, the maximum threads of a block, and bytes of declared shared
// memory.
struct Entry {
  Sizes parameters;
  size_t threads = 1024, shared = 0;
};

// A kernel of a PTX, run from its source.
struct Function {
  std::string name;
  const emulate::Kernel *kernel;
  Entry entry;
  size_t shared = SHARED;
};

struct Module {
  std::map<std::string, Entry> entries;
  std::map<std::string, Function> functions;
};

auto &modules = lasting<std::set<Module *>>();
auto &events = lasting<std::set<Event *>>();
auto &graphs = lasting<std::set<std::shared_ptr<Graph> *>>();
auto &executables = lasting<std::set<Executable *>>();

template <typename T> T &known(std::set<T *> &all, Handle handle) {
  T *found = static_cast<T *>(handle);
  check(all.count(found), INVALID_HANDLE);
  return *found;
}

template <typename T> void make(std::set<T *> &all, Handle *handle, T *made) {
  all.insert(made);
  *handle = made;
}

template <typename T> void destroy(std::set<T *> &all, Handle handle) {
  T *gone = &known(all, handle);
  all.erase(gone);
  delete gone;
}

// The bytes of a parameter such as `.param .align 2 .b8 name[2]`.
size_t size_of(const std::string &parameter) {
  size_t type = 0;
  while (!strchr("usfb", parameter.at(type + 1)) || !isdigit(parameter.at(type + 2)))
    type = parameter.find('.', type + 1);
  const size_t bits = std::stoul(parameter.substr(type + 2)), count = parameter.find('[');
  return bits / 8 * (count == std::string::npos ? 1 : std::stoul(parameter.substr(count + 1)));
}

Sizes sizes_of(const std::string &parameters) {
  Sizes sizes;
  for (size_t at = parameters.find(".param"); at != std::string::npos; at = parameters.find(".param", at + 1))
    sizes.push_back(size_of(parameters.substr(at, parameters.find(',', at) - at)));
  return sizes;
}

// The product of the comma-separated numbers after `mark`, up to the end of the line.
size_t product_after(const std::string &text, const std::string &mark, size_t otherwise) {
  size_t at = text.find(mark);
  if (at == std::string::npos) return otherwise;
  size_t product = 1;
  for (at += mark.size(); at < text.size() && text[at] != '\n';) {
    size_t read = 0;
    product *= std::stoul(text.substr(at), &read);
    at = text.find(',', at + read);
    if (at != std::string::npos) at++;
  }
  return product;
}

// Bytes of declared shared memory by name, from lines such as `.shared .align 4 .b8 name[1024];`.
std::map<std::string, size_t> shared_in(const std::string &text) {
  std::map<std::string, size_t> found;
  const std::string mark = ".shared .align ";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const size_t type = text.find(" .", at + mark.size()), name = text.find(' ', type + 1) + 1;
    const size_t open = text.find('[', name), end = text.find(';', name);
    const size_t bits = std::stoul(text.substr(type + 3));
    const size_t count = open < end && text[open + 1] != ']' ? std::stoul(text.substr(open + 1)) : 0;
    found[text.substr(name, std::min(open, end) - name)] = bits / 8 * count;
  }
  return found;
}

Module *read(const std::string &ptx) {
  // Machine code, an ELF file.
  check(!ptx.starts_with("\x7f" "ELF"), NO_BINARY_FOR_GPU);
  if (ptx.find(".version") == std::string::npos || ptx.find(".target") == std::string::npos) {
    fprintf(stderr, "emulated card: a module is not PTX\n");
    throw INVALID_IMAGE;
  }
  const std::string mark = ".entry ";
  auto module = std::make_unique<Module>();
  for (size_t at = ptx.find(mark); at != std::string::npos; at = ptx.find(mark, at)) {
    at += mark.size();
    const size_t open = ptx.find('(', at), close = ptx.find(')', open), body = ptx.find('{', close);
    const std::string text = ptx.substr(body, ptx.find(mark, body) - body);
    Entry &entry = module->entries[ptx.substr(at, open - at)];
    entry.parameters = sizes_of(ptx.substr(open, close - open));
    entry.threads = product_after(ptx.substr(close, body - close), ".maxntid ", 1024);
    for (const auto &[name, bytes] : shared_in(text)) entry.shared += bytes;
  }
  return module.release();
}

Sizes sizes_of(const emulate::Kernel &kernel) {
  Sizes sizes;
  for (const auto &parameter : kernel.parameters) sizes.push_back(parameter.bytes);
  return sizes;
}

Function &function_of(Module &module, const std::string &name) {
  const auto entry = module.entries.find(name);
  check(entry != module.entries.end(), NOT_FOUND);
  const auto kernel = emulate::kernels().find(name);
  if (kernel == emulate::kernels().end())
    die("%s is in a PTX, but not among the kernels of bin/emulated-card", name.c_str());
  if (sizes_of(kernel->second) != entry->second.parameters)
    die("%s takes other parameters in its PTX than in its source (to mend it: bin/cuda-kernels)", name.c_str());
  return module.functions.emplace(name, Function{name, &kernel->second, entry->second}).first->second;
}

// Copies the arguments of a launch, as the driver does at the call.
std::vector<std::vector<char>> copied(const Function &function, void **arguments) {
  std::vector<std::vector<char>> copies;
  for (const auto &parameter : function.kernel->parameters) {
    const char *from = static_cast<const char *>(*arguments++);
    copies.emplace_back(from, from + parameter.bytes);
    if (!parameter.pointer) continue;
    uintptr_t address;
    memcpy(&address, from, sizeof address);
    // Pinned memory of the host has the same address on a card.
    if (address != 0 && !memory::around(address, 0) && !memory::pinned(reinterpret_cast<void *>(address), 0))
      die("%s is given %#lx, which no kernel can reach, as argument %zu", function.name.c_str(), address,
          copies.size() - 1);
  }
  return copies;
}

// Registers are not known here.
void occupancy(int *blocks, int threads, size_t shared) {
  check(threads > 0 && threads <= 1024, INVALID_VALUE);
  *blocks = std::min({32, 2048 / threads, shared == 0 ? 32 : int(SHARED_ON_REQUEST / shared)});
}

void launch(Function &function, dim3 grid, dim3 block, size_t shared, Handle handle, void **arguments,
            bool together = false) {
  constexpr unsigned HIGHEST = 65535;
  check(grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= INT_MAX && grid.y <= HIGHEST && grid.z <= HIGHEST,
        INVALID_VALUE);
  const size_t threads = size_t(block.x) * block.y * block.z;
  const Entry &entry = function.entry;
  check(threads > 0 && threads <= entry.threads && block.z <= 64, INVALID_VALUE);
  check(entry.shared + shared <= function.shared, INVALID_VALUE);
  const Stream &on = stream(handle);
  check(&on == &legacy || on.card == current_card(), INVALID_HANDLE);
  if (together) {
    constexpr size_t MULTIPROCESSORS = 132;
    int most = 0;
    occupancy(&most, int(threads), entry.shared + shared);
    check(size_t(grid.x) * grid.y * grid.z <= MULTIPROCESSORS * size_t(most), COOPERATIVE_TOO_LARGE);
  }
  auto run = [&function, grid, block, shared, together, copies = copied(function, arguments)]() mutable {
    std::vector<void *> pointers;
    for (auto &copy : copies) pointers.push_back(copy.data());
    const unsigned shapes[2][3] = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
    emulate::cooperative = together;
    function.kernel->launch(shapes[0], shapes[1], shared, pointers.data());
  };
  add(stream(handle), function.name.c_str(), std::move(run));
}

void *in_card(Pointer address, size_t bytes) {
  check(memory::around(address, bytes), INVALID_VALUE);
  return reinterpret_cast<void *>(address);
}

Node copy_node(Node::Place to, Node::Place from, size_t bytes) { return {Kind::Copy, to, from, bytes}; }

void copy_within(Pointer to, Pointer from, size_t bytes, Stream &stream, Memory named = Memory::Card) {
  if (bytes == 0) return;
  add(
      stream, "a copy", [to = in_card(to, bytes), from = in_card(from, bytes), bytes] { memmove(to, from, bytes); },
      copy_node({to, named}, {from, named}, bytes));
}

// Copies to the card. Memory that is not pinned has been read when the driver returns, unless the copy is captured:
// then each launch of the graph reads it.
void copy_there(Pointer to, const void *from, size_t bytes, Stream &stream, Memory there = Memory::Card,
                Memory here = Memory::Host) {
  if (bytes == 0) return;
  void *place = in_card(to, bytes);
  if (stream.capture || memory::pinned(from, bytes)) {
    add(
        stream, "a copy", [place, from, bytes] { memcpy(place, from, bytes); },
        copy_node({to, there}, {uintptr_t(from), here}, bytes));
    return;
  }
  const char *first = static_cast<const char *>(from);
  add(stream, "a copy", [place, staged = std::vector<char>(first, first + bytes)] {
    memcpy(place, staged.data(), staged.size());
  });
}

// Copies to the host. Memory that is not pinned has been written when the driver returns, unless the copy is captured:
// then each launch of the graph writes it.
void copy_back(void *to, Pointer from, size_t bytes, Stream &stream, Memory there = Memory::Card,
               Memory here = Memory::Host) {
  if (bytes == 0) return;
  add(
      stream, "a copy", [to, from = in_card(from, bytes), bytes] { memcpy(to, from, bytes); },
      copy_node({uintptr_t(to), here}, {from, there}, bytes));
  if (!stream.capture && !memory::pinned(to, bytes)) wait_for(stream);
}

template <typename T> void fill(Pointer to, T value, size_t count, Stream &stream) {
  if (count == 0) return;
  T *first = static_cast<T *>(in_card(to, count * sizeof(T)));
  add(stream, "a fill", [first, value, count] { std::fill_n(first, count, value); }, {Kind::Fill});
}

// Runs work without a stream in the legacy stream, and waits for it.
template <typename Call> int at_once(Call call) {
  return in_context("a copy", [&] {
    nothing_captured();
    call(legacy);
    wait_for(legacy);
  });
}

const Node &node_at(Handle handle) {
  for (const auto *graph : graphs)
    for (const Work &work : (*graph)->work)
      if (&work == handle) return work.node;
  throw INVALID_VALUE;
}

// CUDA_MEMCPY3D.
struct Copy3D {
  struct Place {
    size_t x, y, z, lod;
    int type;
    void *host;
    Pointer device;
    void *array, *reserved;
    size_t pitch, height;
  } from, to;
  size_t width, height, depth;
};

Copy3D::Place place_of(Node::Place of) {
  Copy3D::Place place = {};
  place.type = int(of.memory);
  if (of.memory == Memory::Host) place.host = reinterpret_cast<void *>(of.address);
  else place.device = of.address;
  return place;
}

struct Message {
  int status;
  const char *name, *text;
};

constexpr Message MESSAGES[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {COOPERATIVE_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

int message(int status, const char **text, const char *Message::*part) {
  for (const Message &message : MESSAGES)
    if (message.status == status) return *text = message.*part, SUCCESS;
  return *text = nullptr, INVALID_VALUE;
}

// Values of CUdevice_attribute for a card of compute 9.0. Other attributes are 0.
const std::map<int, int> &ATTRIBUTES = *new std::map<int, int>{
    {1, 1024},          // threads of a block
    {2, 1024},          // x of a block
    {3, 1024},          // y
    {4, 64},            // z
    {5, INT_MAX},       // x of a grid
    {6, 65535},         // y
    {7, 65535},         // z
    {8, int(SHARED)},   // bytes that a block shares
    {10, 32},           // threads of a warp
    {12, 65536},        // registers of a block
    {13, 1000000},      // clock, kHz
    {14, 512},          // alignment of textures
    {16, 132},          // multiprocessors
    {31, 1},            // concurrent kernels
    {36, 1000000},      // clock of memory, kHz
    {37, 5120},         // width of memory, bits
    {38, 50 << 20},     // L2, bytes
    {39, 2048},         // threads of a multiprocessor
    {40, 1},            // copy engines
    {41, 1},            // one address space with the host
    {75, 9},            // compute capability
    {76, 0},            //
    {81, 228 << 10},    // bytes that the blocks of a multiprocessor share
    {82, 65536},        // registers of a multiprocessor
    {95, 1},            // cooperative launches
    {97, int(SHARED_ON_REQUEST)},  // bytes that a block shares if a kernel opts in
    {106, 32},          // blocks of a multiprocessor
    {115, 1},           // allocation in stream order
};

} // namespace

DRIVER int cuInit(unsigned) {
  return answer([] {
    if (!initialized) memory::watch();
    initialized = true;
  });
}
DRIVER int cuDriverGetVersion(int *version) { return *version = VERSION, SUCCESS; }
DRIVER int cuGetErrorName(int status, const char **name) { return message(status, name, &Message::name); }
DRIVER int cuGetErrorString(int status, const char **text) { return message(status, text, &Message::text); }

DRIVER int cuDeviceGetCount(int *count) {
  return answer([&] {
    check(initialized, NOT_INITIALIZED);
    *count = cards();
  });
}
DRIVER int cuDeviceGet(Device *device, int ordinal) {
  return answer([&] {
    check_device(ordinal);
    *device = ordinal;
  });
}
DRIVER int cuDeviceGetName(char *name, int length, Device device) {
  return answer([&] {
    check_device(device);
    snprintf(name, size_t(length), "%s", NAME);
  });
}
DRIVER int cuDeviceGetUuid_v2(char *uuid, Device device) {
  return answer([&] {
    check_device(device);
    memcpy(uuid, "sconce-emulated", 16);
  });
}
DRIVER int cuDeviceGetAttribute(int *value, int attribute, Device device) {
  return answer([&] {
    check_device(device);
    const auto found = ATTRIBUTES.find(attribute);
    *value = found == ATTRIBUTES.end() ? 0 : found->second;
  });
}
DRIVER int cuDeviceTotalMem_v2(size_t *bytes, Device device) {
  return answer([&] {
    check_device(device);
    *bytes = memory::total();
  });
}

DRIVER int cuDevicePrimaryCtxRetain(Handle *handle, Device device) {
  return answer([&] {
    check_device(device);
    *handle = &contexts[device];
  });
}
DRIVER int cuDevicePrimaryCtxRelease_v2(Device device) {
  return answer([&] { check_device(device); });
}
DRIVER int cuCtxSetCurrent(Handle handle) {
  return answer([&] {
    check(handle == nullptr || (handle >= contexts && handle < contexts + cards()), INVALID_CONTEXT);
    current = handle;
  });
}
DRIVER int cuCtxGetCurrent(Handle *handle) { return *handle = current, SUCCESS; }
DRIVER int cuCtxSetFlags(unsigned) { return SUCCESS; }
DRIVER int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }
DRIVER int cuCtxSynchronize() {
  return IN_CONTEXT({
    none_of_card_captured(current_card());
    wait_for_all();
  });
}

int card::current_card() { return current ? int(static_cast<int *>(current) - contexts) : -1; }

int card::wait_for_card() { return cuCtxSynchronize(); }

uintptr_t card::lend(size_t bytes) {
  uintptr_t address = 0;
  answer([&] { address = allocate(bytes, nullptr); });
  return address;
}

void card::take_back(uintptr_t address) {
  answer([&] { memory::forget(address); });
}

bool card::reaches(int card, const void *address) {
  std::lock_guard guard(lock);
  const memory::Allocation *a = memory::around(reinterpret_cast<uintptr_t>(address), 0);
  return a && (!a->pool || a->pool->card == card || a->pool->others.count(card));
}

DRIVER int cuMemGetInfo_v2(size_t *free, size_t *total) {
  return IN_CONTEXT({
    *total = memory::total();
    *free = *total - memory::used();
  });
}
DRIVER int cuMemAlloc_v2(Pointer *pointer, size_t bytes) {
  return IN_CONTEXT({
    nothing_captured();
    *pointer = allocate(bytes, nullptr);
  });
}
DRIVER int cuMemFree_v2(Pointer pointer) {
  return IN_CONTEXT({
    nothing_captured();
    wait_for_all();
    if (pointer != 0) release(pointer, legacy), wait_for(legacy);
  });
}
// A request of 0 bytes returns null; cuMemAlloc would fail.
DRIVER int cuMemAllocAsync(Pointer *pointer, size_t bytes, Handle handle) {
  return IN_CONTEXT({
    check(bytes > 0 || !stream(handle).capture, INVALID_VALUE);
    *pointer = bytes == 0 ? 0 : allocate(bytes, stream(handle));
  });
}
DRIVER int cuMemFreeAsync(Pointer pointer, Handle handle) {
  return IN_CONTEXT({
    if (pointer != 0) release(pointer, stream(handle));
  });
}
DRIVER int cuMemHostAlloc(void **pointer, size_t bytes, unsigned) {
  return IN_CONTEXT({
    nothing_captured();
    *pointer = memory::pin(bytes);
  });
}
DRIVER int cuMemFreeHost(void *pointer) {
  return IN_CONTEXT({
    nothing_captured();
    // A card's driver does not promise to wait for work that still reads the memory.
    memory::unpin(pointer);
  });
}

DRIVER int cuMemcpyHtoD_v2(Pointer to, const void *from, size_t bytes) {
  return at_once([&](Stream &stream) { copy_there(to, from, bytes, stream); });
}
DRIVER int cuMemcpyDtoH_v2(void *to, Pointer from, size_t bytes) {
  return at_once([&](Stream &stream) { copy_back(to, from, bytes, stream); });
}
DRIVER int cuMemcpyDtoD_v2(Pointer to, Pointer from, size_t bytes) {
  return at_once([&](Stream &stream) { copy_within(to, from, bytes, stream); });
}
DRIVER int cuMemsetD8_v2(Pointer to, unsigned char value, size_t count) {
  return at_once([&](Stream &stream) { fill(to, value, count, stream); });
}
DRIVER int cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, Handle handle) {
  return IN_CONTEXT({ copy_there(to, from, bytes, stream(handle)); });
}
DRIVER int cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, Handle handle) {
  return IN_CONTEXT({ copy_back(to, from, bytes, stream(handle)); });
}
DRIVER int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, Handle handle) {
  return IN_CONTEXT({ copy_within(to, from, bytes, stream(handle)); });
}
// Finds out which memory the addresses belong to.
DRIVER int cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, Handle handle) {
  return IN_CONTEXT({
    constexpr Memory either = Memory::Either;
    const bool into = memory::around(to, bytes), out = memory::around(from, bytes);
    check(into || out, NOT_SUPPORTED);
    if (into && out) copy_within(to, from, bytes, stream(handle), either);
    else if (into) copy_there(to, reinterpret_cast<void *>(from), bytes, stream(handle), either, either);
    else copy_back(reinterpret_cast<void *>(to), from, bytes, stream(handle), either, either);
  });
}
DRIVER int cuPointerGetAttribute(void *value, int attribute, Pointer address) {
  return IN_CONTEXT({
    constexpr int MEMORY_TYPE = 2, ORDINAL = 9, FIRST = 11, SIZE = 12;
    const memory::Allocation *on_card = memory::around(address, 0);
    check(on_card || memory::pinned(reinterpret_cast<void *>(address), 0), INVALID_VALUE);
    check(attribute == MEMORY_TYPE || on_card, NOT_SUPPORTED);
    switch (attribute) {
    case MEMORY_TYPE: *static_cast<int *>(value) = int(on_card ? Memory::Card : Memory::Host); break;
    case ORDINAL: *static_cast<int *>(value) = on_card->card; break;
    case FIRST: *static_cast<Pointer *>(value) = on_card->address; break;
    case SIZE: *static_cast<size_t *>(value) = on_card->bytes; break;
    default: throw NOT_SUPPORTED;
    }
  });
}
DRIVER int cuMemsetD8Async(Pointer to, unsigned char value, size_t count, Handle handle) {
  return IN_CONTEXT({ fill(to, value, count, stream(handle)); });
}
DRIVER int cuMemsetD32Async(Pointer to, unsigned value, size_t count, Handle handle) {
  return IN_CONTEXT({ fill(to, value, count, stream(handle)); });
}

DRIVER int cuStreamCreate(Handle *handle, unsigned flags) {
  return IN_CONTEXT({ make(streams, handle, new Stream{(flags & 1) == 0, current_card()}); });
}
DRIVER int cuStreamCreateWithPriority(Handle *handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }
DRIVER int cuStreamDestroy_v2(Handle handle) {
  return IN_CONTEXT({
    Stream &gone = stream(handle);
    check(&gone != &legacy, INVALID_HANDLE);
    end_stream(gone);
  });
}
DRIVER int cuStreamSynchronize(Handle handle) {
  return IN_CONTEXT({ wait_for(stream(handle)); });
}
DRIVER int cuStreamQuery(Handle handle) {
  return IN_CONTEXT({
    Stream &asked = stream(handle);
    not_captured(asked);
    check(asked.done == asked.added, NOT_READY);
  });
}
DRIVER int cuStreamWaitEvent(Handle handle, Handle event, unsigned) {
  return IN_CONTEXT({ wait_for(stream(handle), known(events, event)); });
}
DRIVER int cuLaunchHostFunc(Handle handle, void (*call)(void *), void *data) {
  return IN_CONTEXT({ add(stream(handle), "a call of the host", [=] { call(data); }, {Kind::Call}); });
}

DRIVER int cuEventCreate(Handle *handle, unsigned) {
  return IN_CONTEXT({ make(events, handle, new Event); });
}
DRIVER int cuEventDestroy_v2(Handle handle) {
  return IN_CONTEXT({ destroy(events, handle); });
}
DRIVER int cuEventRecord(Handle handle, Handle on) {
  return IN_CONTEXT({ record(known(events, handle), stream(on)); });
}
DRIVER int cuEventSynchronize(Handle handle) {
  return IN_CONTEXT({
    Event &event = known(events, handle);
    check(!event.captured, CAPTURED_EVENT);
    if (event.stream) run_until(*event.stream, event.position);
  });
}
DRIVER int cuEventQuery(Handle handle) {
  return IN_CONTEXT({
    Event &event = known(events, handle);
    check(!event.captured, CAPTURED_EVENT);
    check(!event.stream || event.stream->done >= event.position, NOT_READY);
  });
}
// Times of the emulation, which say nothing about a card.
DRIVER int cuEventElapsedTime_v2(float *milliseconds, Handle first, Handle second) {
  return IN_CONTEXT({
    Event &from = known(events, first), &to = known(events, second);
    check(from.passed && to.passed, INVALID_HANDLE);
    check(*from.passed >= 0 && *to.passed >= 0, NOT_READY);
    *milliseconds = float(*to.passed - *from.passed);
  });
}
DRIVER int cuEventElapsedTime(float *milliseconds, Handle first, Handle second) {
  return cuEventElapsedTime_v2(milliseconds, first, second);
}

DRIVER int cuModuleLoadData(Handle *handle, const void *image) {
  return IN_CONTEXT({
    nothing_captured();
    make(modules, handle, read(static_cast<const char *>(image)));
  });
}
DRIVER int cuModuleLoadDataEx(Handle *handle, const void *image, unsigned, int *, void **) {
  return cuModuleLoadData(handle, image);
}
DRIVER int cuModuleUnload(Handle handle) {
  return IN_CONTEXT({
    nothing_captured();
    wait_for_all();
    destroy(modules, handle);
  });
}
DRIVER int cuModuleGetFunction(Handle *function, Handle module, const char *name) {
  return IN_CONTEXT({ *function = &function_of(known(modules, module), name); });
}
DRIVER int cuFuncGetAttribute(int *value, int attribute, Handle function) {
  return IN_CONTEXT({
    const auto &[_, __, entry, dynamic] = *static_cast<Function *>(function);
    // Threads of a block, bytes of declared shared memory, and the limit of dynamic shared memory; other attributes are
    // 0.
    *value = attribute == 0 ? int(entry.threads) : attribute == 1 ? int(entry.shared) : attribute == 8 ? int(dynamic) : 0;
  });
}
DRIVER int cuFuncSetAttribute(Handle function, int attribute, int value) {
  return IN_CONTEXT({
    if (attribute != 8) return;
    check(value >= 0 && size_t(value) <= SHARED_ON_REQUEST, INVALID_VALUE);
    static_cast<Function *>(function)->shared = std::max(SHARED, size_t(value));
  });
}
DRIVER int cuFuncSetCacheConfig(Handle, int) { return SUCCESS; }
DRIVER int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Handle, int threads, size_t shared) {
  return answer([&] { occupancy(blocks, threads, shared); });
}
DRIVER int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Handle function, int threads,
                                                                size_t shared, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
DRIVER int cuLaunchKernel(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, Handle stream, void **arguments,
                          void **extra) {
  return IN_CONTEXT({
    check(extra == nullptr, NOT_SUPPORTED);
    launch(*static_cast<Function *>(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream,
           arguments);
  });
}
DRIVER int cuLaunchCooperativeKernel(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                     Handle stream, void **arguments) {
  return IN_CONTEXT({
    launch(*static_cast<Function *>(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream,
           arguments, true);
  });
}

DRIVER int cuStreamBeginCapture_v2(Handle handle, int mode) {
  return IN_CONTEXT({
    check(mode >= 0 && mode <= 2, INVALID_VALUE);
    begin(stream(handle), Mode(mode));
  });
}
DRIVER int cuStreamEndCapture(Handle handle, Handle *graph) {
  *graph = nullptr;
  return IN_CONTEXT({ make(graphs, graph, new std::shared_ptr<Graph>(end(stream(handle)))); });
}
DRIVER int cuStreamGetCaptureInfo(Handle handle, int *status, uint64_t *id) {
  return IN_CONTEXT({
    const Stream &asked = stream(handle);
    *status = !asked.capture ? 0 : asked.capture->invalid ? 2 : 1;
    if (id && asked.capture) *id = asked.capture->id;
  });
}
DRIVER int cuStreamIsCapturing(Handle handle, int *status) { return cuStreamGetCaptureInfo(handle, status, nullptr); }
DRIVER int cuGraphInstantiateWithFlags(Handle *executable, Handle handle, unsigned long long flags) {
  constexpr unsigned long long FREES_ON_LAUNCH = 1, ON_CARD = 4, ALL = 15;
  return IN_CONTEXT({
    const auto &graph = known(graphs, handle);
    check(flags <= ALL && !(flags & FREES_ON_LAUNCH && flags & ON_CARD), INVALID_VALUE);
    check(!(flags & ON_CARD), NOT_SUPPORTED);
    // A graph that allocates can have only one executable, because its allocations have fixed addresses.
    check(graph->memory.empty() || graph->executables == 0, NOT_SUPPORTED);
    graph->executables++;
    make(executables, executable, new Executable{graph, (flags & FREES_ON_LAUNCH) != 0});
  });
}
DRIVER int cuGraphUpload(Handle executable, Handle handle) {
  return IN_CONTEXT({ provide(known(executables, executable), stream(handle)); });
}
DRIVER int cuGraphLaunch(Handle executable, Handle handle) {
  return IN_CONTEXT({ card::launch(known(executables, executable), stream(handle)); });
}
DRIVER int cuGraphExecDestroy(Handle handle) {
  return IN_CONTEXT({
    known(executables, handle).graph->executables--;
    destroy(executables, handle);
  });
}
DRIVER int cuGraphDestroy(Handle handle) {
  return IN_CONTEXT({ destroy(graphs, handle); });
}
DRIVER int cuDeviceGraphMemTrim(Device device) {
  return answer([&] {
    check_device(device);
    trim_graphs(device);
  });
}
DRIVER int cuDeviceGetGraphMemAttribute(Device device, int attribute, uint64_t *value) {
  return answer([&] {
    check_device(device);
    // Bytes in use or kept; peaks are not supported.
    check(attribute == 0 || attribute == 2, NOT_SUPPORTED);
    *value = of_graphs(device);
  });
}
// A node is the address of its work in a graph, which does not change after the capture. Without `nodes` the call only
// counts them. Nodes that the graph lacks are null.
DRIVER int cuGraphGetNodes(Handle handle, Handle *nodes, size_t *count) {
  return answer([&] {
    auto &work = known(graphs, handle)->work;
    for (size_t i = 0; nodes != nullptr && i < *count; i++) nodes[i] = i < work.size() ? &work[i] : nullptr;
    *count = nodes == nullptr ? work.size() : std::min(*count, work.size());
  });
}
DRIVER int cuGraphNodeGetType(Handle node, int *kind) {
  return answer([&] { *kind = int(node_at(node).kind); });
}
DRIVER int cuGraphMemcpyNodeGetParams(Handle node, Copy3D *copy) {
  return answer([&] {
    const Node &of = node_at(node);
    check(of.kind == Kind::Copy, INVALID_VALUE);
    *copy = {place_of(of.from), place_of(of.to), of.bytes, 1, 1};
  });
}
