// What the page uses of uplot.js.
export default class uPlot {
  constructor(options: any, data: any[], target: HTMLElement);
  setData(data: any[]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
