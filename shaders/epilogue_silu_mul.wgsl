//#for r in ROWS // 2
        if (first + ${r}u < ${N // 2}u) {
            y[t * STRIDE + first + ${r}u] = a${r}_${m} / (1.0 + exp(-a${r}_${m})) * a${r + ROWS // 2}_${m};
        }
//#endfor
