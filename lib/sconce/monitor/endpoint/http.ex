defmodule Sconce.Monitor.Endpoint.Http do
  @moduledoc false
  # The paths of the endpoint. OTP's server calls `do/1` with each request.

  alias Sconce.Monitor
  alias Sconce.Monitor.Endpoint

  # One file for the browser, put together from three.
  @paths for ending <- ~w(html css js), do: Path.join(__DIR__, "page.#{ending}")
  for path <- @paths, do: @external_resource(path)
  [html, css, js] = Enum.map(@paths, &File.read!/1)
  @page html |> String.replace("{{style}}", css) |> String.replace("{{script}}", js)

  # Hashes of the page's style and script, SHA-256 in Base64: a browser runs nothing else. A test compares them with the
  # page and prints the new ones after a change.
  @style "sha256-OOO3CsfonmnvKgn1vzJeI4645pc/qSCCusc77Gfniew="
  @script "sha256-nlKhy8v4eSThqr3SlPgVI1+lFLJgQwl7fkh+Vhnah6Q="

  @policy "default-src 'none'; style-src '#{@style}'; script-src '#{@script}'; connect-src 'self'; " <>
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

  @safe [
    {~c"Cache-Control", ~c"no-store"},
    {~c"Content-Security-Policy", String.to_charlist(@policy)},
    {~c"X-Content-Type-Options", ~c"nosniff"},
    {~c"Referrer-Policy", ~c"no-referrer"},
    {~c"Cross-Origin-Resource-Policy", ~c"same-origin"}
  ]

  @text ~c"text/plain; charset=utf-8"
  @prometheus ~c"text/plain; version=0.0.4; charset=utf-8"
  @json ~c"application/json"
  @html ~c"text/html; charset=utf-8"

  @doc false
  # `request` is the record `mod` of `:httpd`.
  def unquote(:do)(request) when elem(request, 0) == :mod do
    config = elem(request, 5)
    method = elem(request, 6)
    path = request |> elem(8) |> Enum.take_while(&(&1 not in [??, ?#]))
    hosts = for {~c"host", host} <- elem(request, 11), do: to_string(host)

    {code, type, body} =
      if method in [~c"GET", ~c"HEAD"],
        do: allowed(hosts, path, config),
        else: {405, @text, "Only GET and HEAD are answered.\n"}

    size = body |> byte_size() |> Integer.to_charlist()
    head = [code: code, content_type: type, content_length: size] ++ allow(code) ++ @safe
    {:proceed, [response: {:response, head, if(method == ~c"HEAD", do: [], else: [body])}]}
  end

  defp allow(405), do: [allow: ~c"GET, HEAD"]
  defp allow(_code), do: []

  # A page of another site can point a name of its own at this machine, and its script would then read from here
  # (DNS rebinding). The browser still sends the name of that site.
  defp allowed(hosts, path, config) do
    if host?(hosts, setting(config, :bind_address)),
      do: answer(path, setting(config, :sconce_endpoint)),
      else: {403, @text, "The Host of a request to this machine is localhost or its address.\n"}
  end

  defp host?([host], {127, _, _, _} = address) do
    name = host |> String.downcase() |> String.replace(~r/:\d*\z/, "")
    name in ["localhost", "127.0.0.1", "[::1]", address |> :inet.ntoa() |> to_string()]
  end

  defp host?(_none_or_several, {127, _, _, _}), do: false
  defp host?(_hosts, _address), do: true

  defp setting(config, key) do
    [{^key, value}] = :ets.lookup(config, key)
    value
  end

  defp answer(path, _endpoint) when path in [~c"/", ~c"/index.html"], do: {200, @html, @page}

  defp answer(path, _endpoint) when path in [~c"/metrics", ~c"/metrics/"],
    do: told(Monitor.prometheus(), @prometheus)

  defp answer(~c"/monitor.json", endpoint), do: told(Endpoint.json(endpoint), @json)

  defp answer(_other, _endpoint),
    do: {404, @text, "Not found: there are /, /metrics and /monitor.json.\n"}

  defp told({:ok, body}, type), do: {200, type, body}
  defp told({:error, error}, _type), do: {503, @text, Exception.message(error) <> "\n"}
end
