        // Rows are q, then k, then v; q and k rows come in pairs that turn together (RoPE), and no pair straddles a part.
        // The turns are those of rope_turns.wgsl.
        let position = state.position + t;
//#for r in ROWS // 2
        {
            let row = first + ${2 * r}u;
            let pair = vec2f(a${2 * r}_${m}, a${2 * r + 1}_${m});
            let turn = turn${r}_${m};
            let turned = vec2f(pair.x * turn.x - pair.y * turn.y, pair.x * turn.y + pair.y * turn.x);
            if (row < ${Q_ROWS}u) {
                y[t * STRIDE + row] = turned.x;
                y[t * STRIDE + row + 1u] = turned.y;
            } else if (row < N) {
                let out = select(pair, turned, row < ${Q_ROWS + KV_ROWS}u);
                let at = position * ${2 * KV_ROWS}u + row - ${Q_ROWS}u;
//#if HALF_CACHE
                kv[at / 2u] = to_halves(out);
//#else
                kv[at] = out.x;
                kv[at + 1u] = out.y;
//#endif
            }
        }
//#endfor
