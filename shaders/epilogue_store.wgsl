//#for r in ROWS
        if (first + ${r}u < N) {
            y[t * STRIDE + first + ${r}u] = a${r}_${m};
        }
//#endfor
