defmodule Sconce.Build.PrecompiledTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch
  alias Sconce.Build.{Download, Library, Precompiled}
  alias Sconce.Test.Site

  @moduletag timeout: 300_000
  @version Mix.Project.config()[:version]
  @target Library.target()
  @name Precompiled.archive(@version, @target)

  test "the target is Rust's name for this machine" do
    assert {:ok, %{target: @target}} = Sconce.native_info()

    for {architecture, target} <- [
          {"x86_64-pc-linux-gnu", "x86_64-unknown-linux-gnu"},
          {"x86_64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"},
          {"aarch64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"},
          {"x86_64-alpine-linux-musl", "x86_64-unknown-linux-musl"},
          {"arm-unknown-linux-gnueabihf", "arm-unknown-linux-gnueabihf"},
          {"aarch64-apple-darwin23.1.0", "aarch64-apple-darwin"},
          {"arm64-apple-darwin", "aarch64-apple-darwin"},
          {"amd64-portbld-freebsd14", "x86_64-portbld-freebsd14"}
        ],
        do: assert(Library.target(architecture) == target)
  end

  test "the library of this build says its version and target" do
    bytes = File.read!(Mix.Tasks.Compile.SconceNative.library())
    assert Library.check(bytes, @version, @target) == :ok
    assert {:error, text} = Library.check(bytes, "9.9.9", @target)
    assert text =~ "is the native library of Sconce #{@version} for #{@target}, expected 9.9.9"

    assert {:error, "is no native library of Sconce"} =
             Library.check("\x7fELF", @version, @target)

    cut = "\0sconce-nif " <> String.duplicate("x", 10)
    assert {:error, "is no native library of Sconce"} = Library.check(cut, @version, @target)
  end

  test "a published library is downloaded once, and cargo is not needed" do
    {root, library} = package!()
    port = Site.serve!(fn _line -> Site.ok(archive()) end)

    assert {output, 0} = compile(root, port)

    assert output =~
             "Downloading the native part of Sconce from http://127.0.0.1:#{port}/v1/#{@name}"

    assert_received {:asked, "GET /v1/" <> _, _headers}
    assert File.read!(library) == library_bytes()
    assert File.ls!(Path.join(root, "cache")) == [@name]

    assert {output, 0} = compile(root, port)
    refute output =~ "Downloading"

    File.rm_rf!(Path.join(root, "_build"))
    assert {output, 0} = compile(root, port)
    refute output =~ "Downloading"
    refute_received {:asked, _line, _headers}
    assert File.read!(library) == library_bytes()
  end

  test "the address is that of the variable, else of the app, else of the package" do
    {root, library} = package!()
    port = Site.serve!(fn _line -> Site.ok(archive()) end)
    without = [{"SCONCE_PRECOMPILED_URL", nil}]

    assert {output, 1} = compile(root, port, without)
    assert output =~ "no address is known"

    checksums = File.read!(Path.join(root, "checksums.txt"))

    File.write!(
      Path.join(root, "checksums.txt"),
      "# url: http://127.0.0.1:#{port}/of/package\n" <> checksums
    )

    assert {_output, 0} = compile(root, port, without)
    assert_received {:asked, "GET /of/package/" <> _, _headers}

    fresh!(root)
    File.mkdir_p!(Path.join(root, "config"))

    config =
      "import Config\nconfig :sconce, precompiled_url: \"http://127.0.0.1:#{port}/of/app/\"\n"

    File.write!(Path.join(root, "config/config.exs"), config)
    assert {_output, 0} = compile(root, port, without)
    assert_received {:asked, "GET /of/app/sconce_nif" <> _, _headers}

    fresh!(root)
    with_query = "http://me:secret@127.0.0.1:#{port}/of/query?a=b"
    assert {output, 0} = compile(root, port, [{"SCONCE_PRECOMPILED_URL", with_query}])
    refute output =~ "secret"
    assert_received {:asked, "GET /of/query/sconce_nif" <> rest, _headers}
    assert rest =~ ".so.gz?a=b"

    fresh!(root)
    folder = Path.join(root, "a mirror")
    File.mkdir_p!(folder)
    File.write!(Path.join(folder, @name), archive())

    assert {_output, 0} =
             compile(root, port, [{"SCONCE_PRECOMPILED_URL", "file://" <> URI.encode(folder)}])

    assert File.read!(library) == library_bytes()
  end

  test "an archive with a wrong bit, of another version or of another target is refused by name" do
    <<head::binary-60, byte, tail::binary>> = archive()
    flipped = <<head::binary, Bitwise.bxor(byte, 1), tail::binary>>
    older = archive("0.0.9", @target)
    other = archive(@version, "aarch64-apple-darwin")

    for {bytes, why} <- [
          {flipped,
           "the file contains #{Path.rootname(@name)}; its SHA-256 is #{sha256(flipped)}"},
          {older, "the file contains sconce_nif-0.0.9-#{@target}.so; its SHA-256"},
          {other,
           "the file contains sconce_nif-#{@version}-aarch64-apple-darwin.so; its SHA-256"},
          {"<html>", "#{@name}: its SHA-256 is #{sha256("<html>")}"}
        ] do
      {root, _library} = package!()
      port = Site.serve!(fn _line -> Site.ok(bytes) end)
      assert {output, 1} = compile(root, port)
      assert output =~ why
      assert output =~ "expected #{sha256(archive())}"
      nothing_left!(root)
    end
  end

  test "a package whose checksum is that of another library is refused, too" do
    other = archive(@version, "riscv64gc-unknown-linux-gnu")
    {root, _library} = package!(%{@name => other})
    port = Site.serve!(fn _line -> Site.ok(other) end)
    assert {output, 1} = compile(root, port)
    assert output =~ "is the native library of Sconce #{@version} for riscv64gc-unknown-linux-gnu"
    assert output =~ "expected #{@version} for #{@target}"
    nothing_left!(root)

    {root, _library} = package!(%{@name => "no gzip"})
    port = Site.serve!(fn _line -> Site.ok("no gzip") end)
    assert {output, 1} = compile(root, port)
    assert output =~ "#{@name}: is no gzip file"
    nothing_left!(root)
  end

  test "a damaged file in the cache is removed and downloaded again" do
    {root, library} = package!()
    cached = Path.join(root, "cache/#{@name}")
    File.mkdir_p!(Path.dirname(cached))
    File.write!(cached, "half")
    port = Site.serve!(fn _line -> Site.ok(archive()) end)
    assert {output, 0} = compile(root, port)
    assert output =~ "Removing #{cached}: its SHA-256 is #{sha256("half")}"
    assert File.read!(cached) == archive()

    File.write!(cached, "half")
    File.rm_rf!(Path.join(root, "_build"))
    assert {_output, 1} = compile(root, closed_port())
    nothing_left!(root)
    refute File.exists?(library)
  end

  test "a cache that cannot be written does not prevent the installation" do
    {root, library} = package!()
    port = Site.serve!(fn _line -> Site.ok(archive()) end)
    File.write!(Path.join(root, "cache"), "a file")
    assert {output, 0} = compile(root, port)
    assert output =~ "not cached: "
    assert File.read!(library) == library_bytes()

    File.rm!(Path.join(root, "cache"))
    File.mkdir_p!(Path.join(root, "cache/#{@name}"))
    assert {output, 0} = compile(root, port, [{"SCONCE_PROFILE", ""}, {"SCONCE_BUILD", "0"}])
    refute output =~ "Downloading"
    File.rm_rf!(Path.join(root, "_build"))
    assert {output, 0} = compile(root, port)
    assert output =~ "not cached: "

    assert {output, 1} =
             compile(root, port, [
               {"SCONCE_CACHE_DIR", "cache"},
               {"MIX_BUILD_PATH", Path.join(root, "b")}
             ])

    assert output =~ "SCONCE_CACHE_DIR: cache is relative, expected an absolute path"
  end

  test "each failure of the network is an error with the ways out" do
    whole = archive()
    half = binary_part(whole, 0, div(byte_size(whole), 2))
    missing = Site.serve!(fn _line -> Site.status("404 Not Found") end)
    cut = Site.serve!(fn _line -> Site.ok(half, byte_size(whole)) end)

    for {port, why} <- [
          {closed_port(), "could not connect to 127.0.0.1:"},
          {missing, "answered 404 Not Found"},
          {cut, "closed the connection before the end of its #{byte_size(whole)} bytes"}
        ] do
      {root, _library} = package!()
      assert {output, 1} = compile(root, port)
      assert output =~ "native library is not installed: http://127.0.0.1:#{port}/v1/#{@name}: "
      assert output =~ why
      assert output =~ "put #{@name} into #{root}/cache"

      for way <- ~w(SCONCE_NATIVE_PATH SCONCE_BUILD=1 SCONCE_PRECOMPILED_URL),
          do: assert(output =~ way)

      nothing_left!(root)
    end
  end

  test "an address that answers nothing, or is none, is an error" do
    silent = Site.serve!(fn _line -> :silence end)
    assert {:error, "sent nothing for 0 s"} = Download.get("http://127.0.0.1:#{silent}/x", 200)
    assert {:error, "is no address" <> _} = Download.get("ftp://127.0.0.1/x")
    assert {:error, "is no address" <> _} = Download.get("http:///x")

    assert {:error, "could not connect to sconce.invalid:80: " <> _} =
             Download.get("http://sconce.invalid/x")

    assert {:error, "no such file or directory"} = Download.get("file:///nowhere/x")
  end

  test "a redirection is followed" do
    file = Site.serve!(fn _line -> Site.ok("the file") end)
    location = "Location: http://127.0.0.1:#{file}/moved\r\n"
    first = Site.serve!(fn _line -> Site.status("302 Found", location) end)
    assert {:ok, "the file"} = Download.get("http://127.0.0.1:#{first}/x")
    assert_received {:asked, "GET /moved HTTP/1.1", _headers}

    around = Site.serve!(fn _line -> Site.status("307 Again", "Location: /again\r\n") end)
    assert {:error, text} = Download.get("http://127.0.0.1:#{around}/x")
    assert text =~ "redirects more than 5 times"

    for {to, why} <- [
          {"file:///etc/hosts", "which is not followed"},
          {"http://127.0.0.1:#{closed_port()}/", "could not connect"}
        ] do
      away = Site.serve!(fn _line -> Site.status("302 Found", "Location: #{to}\r\n") end)
      assert {:error, text} = Download.get("http://127.0.0.1:#{away}/x")
      assert text =~ "redirects to #{to}"
      assert text =~ why
    end
  end

  test "a proxy is asked, unless the host is excepted" do
    {root, _library} = package!()
    proxy = Site.serve!(fn _line -> Site.ok(archive()) end)
    through = [{"http_proxy", "http://me:pass%20word@127.0.0.1:#{proxy}"}]
    far = [{"SCONCE_PRECOMPILED_URL", "http://files.invalid/v1"}]

    assert {_output, 0} = compile(root, 1, through ++ far)
    assert_received {:asked, "GET http://files.invalid/v1/" <> _, headers}
    assert "proxy-authorization: Basic #{Base.encode64("me:pass word")}" in headers

    fresh!(root)
    assert {output, 1} = compile(root, 1, [{"no_proxy", "localhost,.invalid"} | through ++ far])
    assert output =~ "could not connect to files.invalid:80"
    refute_received {:asked, _line, _headers}

    refused = Site.serve!(fn _line -> Site.status("407 Proxy Authentication Required") end)
    secure = [{"SCONCE_PRECOMPILED_URL", "https://files.invalid/v1"}]

    assert {output, 1} =
             compile(root, 1, [{"https_proxy", "http://127.0.0.1:#{refused}"} | secure])

    assert output =~ "the proxy refused the connection: "
    assert_received {:asked, "CONNECT files.invalid:443 HTTP/1.1", _headers}

    gone = closed_port()
    assert {output, 1} = compile(root, 1, [{"HTTP_PROXY", "127.0.0.1:#{gone}"} | far])
    assert output =~ "could not connect to 127.0.0.1:#{gone}"
    assert {output, 1} = compile(root, 1, [{"http_proxy", "socks5://127.0.0.1:1"} | far])
    assert output =~ ~s(http_proxy is "socks5://127.0.0.1:1", expected http://host:port)
    nothing_left!(root)
  end

  test "the certificate of the server is checked" do
    {root, library} = package!()
    %{server_config: server, client_config: client} = certificates()
    port = Site.serve!(fn _line -> Site.ok(archive()) end, server)
    url = [{"SCONCE_PRECOMPILED_URL", "https://localhost:#{port}/v1"}]

    assert {output, 1} = compile(root, port, url)
    assert output =~ ~r/Unknown CA|certificate/
    nothing_left!(root)
    assert {output, 1} = compile(root, port, [{"SSL_CERT_FILE", "/nowhere.pem"} | url])
    assert output =~ "SSL_CERT_FILE: /nowhere.pem: no such file"

    entries = for der <- client[:cacerts], do: {:Certificate, der, :not_encrypted}
    pem = Path.join(root, "authority.pem")
    File.write!(pem, :public_key.pem_encode(entries))
    assert {_output, 0} = compile(root, port, [{"SSL_CERT_FILE", pem} | url])
    assert File.read!(library) == library_bytes()
  end

  test "a machine without a published library builds it, or names what is published" do
    other = "sconce_nif-#{@version}-riscv64gc-unknown-linux-gnu.so.gz"
    {root, _library} = package!(%{other => "x"})
    assert {output, 1} = compile(root, 1)
    assert output =~ "no library is published for #{@target}, only #{other}"
    assert output =~ "SCONCE_BUILD=1"

    cargo = Path.join(root, "cargo")
    File.write!(cargo, "#!/bin/sh\necho cargo was asked; exit 1\n")
    File.chmod!(cargo, 0o755)
    assert {output, 1} = compile(root, 1, [{"CARGO", cargo}])
    assert output =~ "cargo was asked"

    {root, _library} = package!()

    for asked <- ~w(SCONCE_BUILD SCONCE_PROFILE SCONCE_FEATURES) do
      assert {output, 1} = compile(root, 1, [{"CARGO", cargo}, {asked, "1"}])
      assert output =~ "cargo was asked"
    end
  end

  # A package with Sconce's build and checksums; no Rust is near it. Returns its folder and the path of its library.
  defp package!(archives \\ %{@name => archive()}) do
    root = tmp_dir!("package")
    File.cp!("mix.exs", Path.join(root, "mix.exs"))
    File.cp_r!("build", Path.join(root, "build"))
    lines = for {name, bytes} <- archives, do: "#{sha256(bytes)}  #{name}\n"
    File.write!(Path.join(root, "checksums.txt"), lines)
    {root, Path.join(root, "_build/prod/lib/sconce/priv/native/sconce_nif.so")}
  end

  defp fresh!(root) do
    File.rm_rf!(Path.join(root, "_build"))
    File.rm_rf!(Path.join(root, "cache"))
  end

  defp compile(root, port, env \\ []) do
    clean =
      for name <-
            ~w(http_proxy HTTP_PROXY https_proxy HTTPS_PROXY no_proxy NO_PROXY SSL_CERT_FILE),
          do: {name, nil}

    settings = [
      {"CARGO", "/nowhere/cargo"},
      {"SCONCE_CACHE_DIR", Path.join(root, "cache")},
      {"SCONCE_PRECOMPILED_URL", "http://127.0.0.1:#{port}/v1"}
    ]

    mix(["compile"], root, clean ++ settings ++ env)
  end

  defp nothing_left!(root) do
    for folder <- ["cache", "_build/prod/lib/sconce/priv/native"],
        do: assert(Path.wildcard(Path.join([root, folder, "*"])) == [])
  end

  defp library_bytes(version \\ @version, target \\ @target),
    do: "\x7fELF" <> String.duplicate("code", 50) <> "\0sconce-nif #{version} #{target}\0"

  # As gzip writes it, with the name of the file in the header.
  defp archive(version \\ @version, target \\ @target) do
    <<0x1F, 0x8B, 8, 0, times::binary-6, rest::binary>> =
      :zlib.gzip(library_bytes(version, target))

    <<0x1F, 0x8B, 8, 8, times::binary, "sconce_nif-#{version}-#{target}.so\0", rest::binary>>
  end

  defp sha256(bytes), do: :crypto.hash(:sha256, bytes) |> Base.encode16(case: :lower)

  # A port that was free a moment ago.
  defp closed_port do
    {:ok, listener} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(listener)
    :ok = :gen_tcp.close(listener)
    port
  end

  # A chain of certificates for localhost, made by OTP.
  defp certificates do
    {:ok, _apps} = Application.ensure_all_started(:ssl)
    name = {:Extension, {2, 5, 29, 17}, false, [dNSName: ~c"localhost"]}
    sha256 = [digest: :sha256, key: {:rsa, 2048, 65_537}]

    :public_key.pkix_test_data(%{
      server_chain: %{root: sha256, intermediates: [], peer: [extensions: [name]] ++ sha256},
      client_chain: %{root: sha256, intermediates: [], peer: sha256}
    })
  end
end
