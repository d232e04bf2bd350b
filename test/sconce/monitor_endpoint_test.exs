defmodule Sconce.Monitor.EndpointTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Error, Monitor, Native}
  alias Sconce.Monitor.{Endpoint, Json, Prometheus, Vm}
  alias Sconce.Test.{Chromium, FiguresFile}

  doctest Endpoint

  setup do
    dir = tmp_dir!("endpoint")
    endpoint = start_supervised!({Endpoint, port: 0, dir: dir})
    {:ok, port} = Endpoint.port(endpoint)
    [port: port, dir: dir]
  end

  # The answer to the bytes of a request.
  defp answer(port, request) do
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    :ok = :gen_tcp.send(socket, request)
    answer = all(socket, "")
    :gen_tcp.close(socket)
    answer
  end

  defp all(socket, sofar) do
    case :gen_tcp.recv(socket, 0, 5_000) do
      {:ok, bytes} -> all(socket, sofar <> bytes)
      {:error, _closed} -> sofar
    end
  end

  defp get(port, path, host \\ "localhost"), do: ask(port, "GET", path, "Host: #{host}\r\n")

  defp ask(port, method, path, head),
    do: answer(port, "#{method} #{path} HTTP/1.1\r\n#{head}Connection: close\r\n\r\n")

  defp code(answer) do
    [_all, code] = Regex.run(~r/\AHTTP\/1\.\d (\d{3}) /, answer)
    String.to_integer(code)
  end

  defp body(answer) do
    [_head, body] = String.split(answer, "\r\n\r\n", parts: 2)
    body
  end

  defp json(port) do
    answer = get(port, "/monitor.json")
    assert answer =~ ~r/content-type: application\/json/i
    {:ok, document} = answer |> body() |> Json.decode()
    document
  end

  test "a scrape has the values", %{port: port} do
    answer = get(port, "/metrics")
    assert answer =~ ~r/\AHTTP\/1\.\d 200/
    assert answer =~ ~r/content-type: text\/plain; version=0\.0\.4/i
    [_head, body] = String.split(answer, "\r\n\r\n", parts: 2)
    assert body =~ ~r/^sconce_decisions_total \d+$/m
    assert String.ends_with?(body, "\n")
  end

  test "other paths and methods are refused", %{port: port} do
    assert code(get(port, "/etc/passwd")) == 404
    assert get(port, "/nothing") =~ "/monitor.json"
    assert code(get(port, "/../../etc/passwd")) in [400, 404]

    for method <- ~w(POST PUT DELETE PATCH),
        path <- ["/", "/metrics", "/monitor.json", "/other"] do
      answer = ask(port, method, path, "Host: localhost\r\nContent-Length: 0\r\n")
      assert code(answer) == 405
      assert answer =~ ~r/^allow: GET, HEAD\r$/mi
    end

    refute code(ask(port, "OPTIONS", "/", "Host: localhost\r\n")) in 200..299
  end

  @paths ~w(/ /index.html /metrics /monitor.json)

  test "every path answers GET, HEAD without a body, and a query", %{port: port} do
    for path <- @paths do
      assert code(get(port, path)) == 200
      assert code(get(port, path <> "?a=b")) == 200
      head = ask(port, "HEAD", path, "Host: localhost\r\n")
      assert code(head) == 200
      assert body(head) == ""
      assert head =~ ~r/^content-length: [1-9]\d+\r$/mi
    end
  end

  test "every answer forbids other sources, guesses of its type, and copies", %{port: port} do
    for path <- ["/nothing" | @paths], host <- ["localhost", "example.com"] do
      answer = get(port, path, host)
      assert answer =~ ~r/^content-security-policy: default-src 'none';.*connect-src 'self'/mi
      refute answer =~ "unsafe"
      assert answer =~ ~r/^x-content-type-options: nosniff\r$/mi
      assert answer =~ ~r/^cache-control: no-store\r$/mi
      refute answer =~ ~r/access-control-allow/i
    end
  end

  test "the page is one file, whose style and script are those of its policy", %{port: port} do
    page = get(port, "/")
    assert page =~ ~r/content-type: text\/html; charset=utf-8/i
    assert body(page) == body(get(port, "/index.html"))
    refute page =~ "{{"
    # Nothing is loaded, and no text from JSON becomes HTML.
    refute body(page) =~ ~r/(src|href)="(?!data:|metrics"|monitor\.json")/
    refute page =~ ~r/innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|@import/

    for {tag, source} <- [{"style", "style-src"}, {"script", "script-src"}] do
      [[_all, text]] = Regex.scan(~r/<#{tag}>(.*?)<\/#{tag}>/s, body(page))
      hash = "sha256-" <> Base.encode64(:crypto.hash(:sha256, text))
      assert page =~ "#{source} '#{hash}'", "in endpoint/http.ex, @#{tag} has to be #{hash}"
    end
  end

  test "a request by the name of another site is refused", %{port: port} do
    for name <- ~w(localhost LOCALHOST 127.0.0.1 [::1]), host <- [name, "#{name}:#{port}"] do
      assert code(get(port, "/metrics", host)) == 200
    end

    others =
      ~w(example.com localhost.example.com 127.0.0.1.example.com example.com:#{port}) ++
        ["", "localhost@example.com", "example.com:localhost", "0.0.0.0", "localhost:80:90"]

    for path <- ["/nothing" | @paths], host <- others do
      assert code(get(port, path, host)) in [400, 403], inspect({path, host})
    end

    two = "Host: localhost\r\nHost: example.com\r\n"
    assert code(ask(port, "GET", "/metrics", two)) == 403
    assert code(answer(port, "GET /metrics HTTP/1.0\r\n\r\n")) == 403
    assert code(answer(port, "GET http://example.com/metrics HTTP/1.0\r\n\r\n")) == 403
  end

  test "an endpoint for other machines accepts their names of it", %{dir: dir} do
    options = [port: 0, address: {0, 0, 0, 0}, dir: dir]
    endpoint = start_supervised!({Endpoint, options}, id: :open)
    {:ok, port} = Endpoint.port(endpoint)
    for host <- ["box.lan", "localhost:80"], do: assert(code(get(port, "/", host)) == 200)
  end

  describe "the JSON of the page" do
    test "has the metrics of this VM", %{port: port} do
      {:ok, games} = Monitor.counter("endpoint_test_total", unit: "games", doc: "Played games.")
      {:ok, rating} = Monitor.gauge("endpoint_test_rating", labels: [who: ~S(<b>"a"\</b>)])
      {:ok, lag} = Monitor.histogram("endpoint_test_lag_seconds", unit: "ns")
      :ok = Monitor.add(games, 3)
      :ok = Monitor.set(rating, 1520.5)
      for ms <- 1..100, do: :ok = Monitor.record(lag, ms * 1_000_000)

      document = json(port)
      assert_in_delta document["time"], System.os_time(:millisecond), 60_000
      assert %{"state" => "running", "pid" => pid} = document["vm"]
      assert to_string(pid) == System.pid()
      metrics = Map.new(document["metrics"], &{&1["base"], &1})

      assert %{"kind" => "counter", "unit" => "games", "doc" => "Played games.", "value" => 3} =
               metrics["endpoint_test_total"]

      assert %{"app" => true, "labels" => %{"who" => ~S(<b>"a"\</b>)}, "value" => 1520.5} =
               metrics["endpoint_test_rating"]

      assert %{"unit" => "s", "value" => value} = metrics["endpoint_test_lag_seconds"]
      assert value["count"] == 100
      assert_in_delta value["mean"], 0.0505, 1.0e-6

      for {key, seconds} <- [p50: 0.05, p95: 0.095, p99: 0.099, p999: 0.1],
          do: assert_in_delta(value[to_string(key)], seconds, 0.01 * seconds)

      assert %{"app" => false, "kind" => "counter"} = metrics["sconce_decisions_total"]
    end

    test "has the runs with their states, progress and curves", %{port: port, dir: dir} do
      started = System.os_time(:millisecond) - 60_000
      gone = [os_pid: 4_194_303, started_ms: started, heartbeat_ms: started + 9_000]
      FiguresFile.write!(dir, "0000000a.run", training(), meta: meta("first"))
      FiguresFile.write!(dir, "0000000b.run", training(), [meta: meta("second")] ++ gone)
      failed = [{:text, "error", "no \xFF memory"}]
      FiguresFile.write!(dir, "0000000c.run", failed, state: 2, meta: meta("third"))
      File.write!(Path.join(dir, "0000000d.run"), "no file of figures")

      runs = Map.new(json(port)["runs"], &{&1["id"], &1})
      assert runs |> Map.keys() |> Enum.sort() == ~w(0000000a 0000000b 0000000c)
      a = runs["0000000a"]
      assert %{"state" => "running", "kind" => "imitation", "out" => "/runs/first"} = a
      assert %{"step" => 250.0, "steps" => 1000.0, "share" => 0.25, "loss" => 1.25} = a
      assert_in_delta a["left"], 180, 1.0e-6
      assert a["command"] == "mix sconce.train --out first"
      assert [loss, memory] = a["curves"]
      assert %{"name" => "step.loss", "unit" => "", "points" => points} = loss
      assert %{"name" => "machine.memory", "unit" => "bytes"} = memory
      assert length(points) in 100..121
      assert {hd(points), List.last(points)} == {[1.0, 5.0], [1000.0, 0.005]}
      assert %{"name" => "step.step", "unit" => "", "value" => 250.0} in a["figures"]
      assert %{"state" => "DEAD", "left" => nil, "seconds" => 9.0} = runs["0000000b"]

      assert %{"state" => "failed", "error" => "no \\xFF memory", "share" => nil} =
               runs["0000000c"]
    end

    test "has at most 24 runs, and counts the others", %{port: port, dir: dir} do
      for n <- 10..39, do: FiguresFile.write!(dir, "000000#{n}.run", [{:gauge, "step.step", 1.0}])
      document = json(port)
      assert length(document["runs"]) == 24
      assert document["hidden"] == 6
    end

    test "has the other VMs of the folder, and not this one again", %{dir: dir} do
      cpu = [{:gauge, "sconce_cpu_ratio", 0.5}]
      FiguresFile.write!(dir, "1-0000000a.vm", cpu, meta: %{"kind" => "vm", "name" => "other"})

      own = Path.basename(Monitor.file() || "#{System.pid()}.vm")
      FiguresFile.write!(dir, own, cpu, meta: %{"kind" => "vm", "name" => "own"})

      {:ok, port} =
        {Endpoint, port: 0, dir: dir} |> start_supervised!(id: :vms) |> Endpoint.port()

      assert [%{"id" => "1", "name" => "other", "cpu" => 0.5}] = json(port)["vms"]
    end

    test "is read once for many pages", %{port: port, dir: dir} do
      first = body(get(port, "/monitor.json"))
      FiguresFile.write!(dir, "0000000a.run", training())
      assert body(get(port, "/monitor.json")) == first
      Process.sleep(1_000)
      assert [%{"id" => "0000000a"}] = json(port)["runs"]
    end

    test "has the new content of a run that had ended", %{port: port, dir: dir} do
      FiguresFile.write!(dir, "0000000a.run", [{:gauge, "step.step", 1.0}], state: 1)
      assert [%{"step" => 1.0, "state" => "done"}] = json(port)["runs"]
      Process.sleep(1_000)
      assert [%{"step" => 1.0, "state" => "done"}] = json(port)["runs"]

      FiguresFile.write!(dir, "0000000a.run", [{:gauge, "step.step", 22.0}],
        state: 2,
        started_ms: 1
      )

      Process.sleep(1_000)
      assert [%{"step" => 22.0, "state" => "failed"}] = json(port)["runs"]
    end

    test "names a folder that cannot be read", %{dir: dir} do
      file = Path.join(dir, "file")
      File.write!(file, "")

      {:ok, port} =
        {Endpoint, port: 0, dir: file} |> start_supervised!(id: :file) |> Endpoint.port()

      assert %{"runs" => [], "error" => error} = json(port)
      assert error =~ "not a directory"
    end
  end

  # Texts that would be elements, or end one, in a page that takes text for HTML.
  @hostile [
    "<script>document.title='owned'</script>",
    ~s("><img src=x onerror="document.title='owned'">),
    "</option></select><b id=owned>",
    "${document.title='owned'}"
  ]

  @tag :chromium
  @tag timeout: 180_000
  test "a browser shows values, and no name becomes an element", %{port: port, dir: dir} do
    {:ok, region} = Vm.region()

    for {text, n} <- Enum.with_index(@hostile) do
      {:ok, gauge} = Monitor.gauge("endpoint_test_hostile", labels: [text: text], doc: text)
      Monitor.set(gauge, n)
      name = "sconce_serving_answered_total" <> Prometheus.labels!(serving: text)
      {:ok, answered} = Native.monitor_metric(region.ref, :counter, name, "requests", "")
      :ok = Native.monitor_add(region.ref, answered, 77)
      meta = for key <- ~w(kind out host command), into: %{}, do: {key, text}
      curve = for x <- 1..9, do: {x / 1, 1 / x}
      figures = [{:gauge, text, 1.5}, {:text, "note", text}, {:text, "error", text}]
      figures = figures ++ [{:series, text <> ".curve", curve}, {:series, text <> "2", curve}]
      FiguresFile.write!(dir, "0000000#{n}.run", figures, meta: meta)
    end

    FiguresFile.write!(dir, "0000000a.run", training(), meta: meta("first"))

    # Each run is the one whose details are drawn, by the address of the page.
    pages =
      for id <- ["0000000a" | Enum.map(0..3, &"0000000#{&1}")],
          do: Chromium.elements("http://localhost:#{port}/##{id}", dir)

    [first | _hostile] = pages
    assert first =~ ~r/id="updated"[^>]*>updated \d\d:\d\d:\d\d</
    assert first =~ ~r/>Run 0000000a</
    assert first =~ "25 % · 250 of 1,000 · 3 min left"
    assert first =~ ~r/<progress[^>]*aria-label="Progress of 0000000a"/
    assert first =~ "step.loss: 0.005 at step 1,000, lowest 0.005 at 1,000, first 5"
    assert first =~ ~r/<path d="M[\d. ]+L/
    assert first =~ "● running"

    for page <- pages do
      refute page =~ ~r/<(img|b)\b/i
      refute page =~ ~r/<title>owned/
      assert length(Regex.scan(~r/<script\b/i, page)) == 1
      assert page =~ "&lt;script&gt;document.title='owned'&lt;/script&gt;"
      assert length(Regex.scan(~r/>77 answered</, page)) == length(@hostile)
    end
  end

  @tag :chromium
  test "a browser draws the page, wide and narrow", %{port: port, dir: dir} do
    FiguresFile.write!(dir, "0000000a.run", training(), meta: meta("first"))

    for {width, height} = size <- [{1280, 800}, {500, 844}] do
      file = Path.join(dir, "page-#{width}.png")
      Chromium.screenshot("http://127.0.0.1:#{port}/", file, size, dir)

      assert <<0x89, "PNG\r\n\x1A\n", _::64, ^width::32, ^height::32, _::binary>> =
               File.read!(file)

      # One colour alone would be a few kB.
      assert File.stat!(file).size > 15_000
    end
  end

  defp training do
    curve = for n <- 1..1000, do: {n / 1, 5 / n}

    [
      {:gauge, "start.steps", 1000.0},
      {:gauge, "step.step", 250.0},
      {:gauge, "step.seconds", 60.0},
      {:gauge, "step.loss", 1.25},
      {:text, "note", "checkpoint, step 200"},
      {:series, "machine.memory.curve", [{1.0, 1.0e9}, {250.0, 2.0e9}], "bytes", ""},
      {:series, "step.loss.curve", curve}
    ]
  end

  defp meta(name) do
    {:ok, host} = :inet.gethostname()

    %{
      "kind" => "imitation",
      "out" => "/runs/#{name}",
      "command" => "mix sconce.train --out #{name}",
      "host" => to_string(host)
    }
  end

  test "a port in use is an error that names it", %{port: port} do
    Process.flag(:trap_exit, true)
    assert {:error, %Error{kind: :unavailable} = error} = Endpoint.start_link(port: port)
    assert Exception.message(error) =~ "port #{port}"
    assert Exception.message(error) =~ "in use"
  end

  test "a scrape that hangs, and garbage, hinder no other", %{port: port} do
    hanging =
      for _n <- 1..4 do
        {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
        :ok = :gen_tcp.send(socket, "GET /metr")
        socket
      end

    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    :ok = :gen_tcp.send(socket, :crypto.strong_rand_bytes(4096))
    assert get(port, "/metrics") =~ " 200"
    Enum.each([socket | hanging], &:gen_tcp.close/1)
    assert get(port, "/metrics") =~ " 200"
  end

  test "many at the same time are answered", %{port: port} do
    answers = 1..10 |> Enum.map(fn _n -> Task.async(fn -> get(port, "/metrics") end) end)
    assert answers |> Task.await_many(30_000) |> Enum.all?(&(&1 =~ " 200"))
  end

  test "a wrong option is refused" do
    assert_raise ArgumentError, ~r/:port/, fn -> Endpoint.start_link(port: 70_000) end
    assert_raise ArgumentError, ~r/:address/, fn -> Endpoint.start_link(address: "localhost") end
  end
end
